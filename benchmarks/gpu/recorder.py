"""Writes each measurement as one line of JSON as soon as it is made, so that a killed run keeps what it has."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from penstock.errors import DeviceLostError
from penstock.runtime import check_device, check_device_works, prepare_device, prepare_process

STICKY_STATUS = 3
"""Exit status of a program whose CUDA context is broken: every later call of the process fails."""
_WARM_UP_CALLS = 3
_MIN_CALLS, _MAX_CALLS = 5, 50


class StickyError(Exception):
    """The process's CUDA context is broken."""


class Recorder:
    """Appends to a file of JSON lines: `name`, `case` and `value` with `unit`, or `error`, or `skipped`."""

    def __init__(self, path: Path, device: str):
        self._path = path
        self._device = torch.device(device)

    def add(self, name: str, case: dict[str, Any], value: float, unit: str, predicted: float | None, **more: Any):
        """Records a value. predicted: what benchmarks/gpu/predictions.py has for it; more: further fields."""
        self._write(
            {"name": name, "case": case, "value": value, "unit": unit, "predicted": predicted, **more},
            f"{value:.4g} {unit}" + (f", predicted {predicted:.4g}" if predicted is not None else ""),
        )

    def skip(self, name: str, case: dict[str, Any], reason: str) -> None:
        """Records that a case cannot be measured here."""
        self._write({"name": name, "case": case, "skipped": reason}, f"skipped: {reason}")

    def attempt(self, name: str, case: dict[str, Any], measure: Callable[[], None]) -> bool:
        """Calls `measure`, which records its values; False if it failed, which is recorded.

        Raises StickyError, after it is recorded, if the device does not work any more.
        """
        try:
            measure()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:500]}"
            is_sticky = self._is_broken(error)
            self._write({"name": name, "case": case, "error": text, "is_sticky": is_sticky}, f"failed: {text}")
            if is_sticky:
                raise StickyError(text) from error
            return False
        return True

    def _is_broken(self, error: Exception) -> bool:
        try:
            check_device_works(self._device, error)
        except DeviceLostError:
            return True
        return False

    def _write(self, record: dict[str, Any], text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        case = " ".join(f"{key}={value}" for key, value in record["case"].items())
        print(f"{record['name']} {case}: {text}", flush=True)


def median_ms(task: Callable[[], object], device: str, budget_s: float) -> float:
    """Median milliseconds of a call, from an idle device until its kernels are done, host time included.

    budget_s: about how long to measure; at least 5 calls are counted, after 3 that are not. 0: 2 calls, after 1.
    """
    clock = _cuda_ms if device.startswith("cuda") else _host_ms
    warm_up_calls, min_calls = (_WARM_UP_CALLS, _MIN_CALLS) if budget_s else (1, 2)
    for _ in range(warm_up_calls):
        clock(task)
    began_s, found = time.perf_counter(), []
    while len(found) < min_calls or (len(found) < _MAX_CALLS and time.perf_counter() - began_s < budget_s):
        found.append(clock(task))
    return statistics.median(found)


def _host_ms(task: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    task()
    return 1e3 * (time.perf_counter() - began_s)


def _cuda_ms(task: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    task()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def run_program(
    arguments: list[str] | None,
    description: str,
    measure: Callable[[Recorder, argparse.Namespace], None],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> int:
    """The command line of a program of this package; returns the exit status, 3 if the device broke."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file of JSON lines, appended to")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few calls: whether it runs at all")
    add_options(parser)
    chosen = parser.parse_args(arguments)
    check_device(chosen.device, "--device")
    prepare_process(1)
    prepare_device(chosen.device)
    recorder = Recorder(chosen.json, chosen.device)
    try:
        measure(recorder, chosen)
    except StickyError as error:
        print(f"the device does not work any more: {error}", file=sys.stderr)
        return STICKY_STATUS
    return 0
