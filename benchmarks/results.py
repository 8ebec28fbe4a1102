"""Output of every benchmark: hardware and date, a JSON file with a Markdown table beside it, progress on stderr."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.reporting import commit, core_count, date_utc, describe_hardware, package_versions, write_report
from penstock.transcription.progress import duration

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = (
    "torch",
    "numpy",
    "openvino",
    "cuda-bindings",
    "triton",
    "nemo_toolkit",
    "transformers",
    "onnxruntime",
    "sherpa-onnx",
    "tritonclient",
)


class Ratios(NamedTuple):
    """Of a case and a system, one per round; what they are."""

    values: Mapping[str, Mapping[str, Sequence[float]]]
    label: str


def environment(threads: int, device: str = "cpu") -> dict[str, object]:
    """Date, commit, command, hardware and versions of this run. threads: CPU threads per process."""
    return {
        "date": date_utc(),
        "commit": commit(),
        "command": _command(),
        "device": device,
        "threads": threads,
        "hardware": describe_hardware(device),
        "cores": core_count(),
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": package_versions(_PACKAGES),
    }


def _command() -> str:
    script, module = Path(sys.argv[0]), ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}"]
    return shlex.join([*(module if script.parent.name == "benchmarks" else [script.name]), *sys.argv[1:]])


def describe(environment: dict) -> str:
    """One line of Markdown."""
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return (
        f"{environment['hardware']}; {environment['device']}, threads: {environment['threads']}; {packages}; "
        f"{environment['date']}, commit {environment['commit']}, "
        f"load before {environment['load_average_before']:.1f}"
    )


def publish(
    markdown: str, document: dict, json_path: Path | None, is_quiet: bool = False, ratios: Ratios | None = None
) -> None:
    """Prints a result, unless `is_quiet`; with a path also writes it there as JSON, and as Markdown beside it, and a
    picture of the ratios.
    """
    if not is_quiet:
        print(markdown, flush=True)
    if json_path is not None:
        write_report(json_path, document, markdown)
        if ratios and any(ratios.values.values()):
            from loadtest.pictures import draw_ratios

            draw_ratios(ratios.values, json_path.with_suffix(".png"), ratios.label, document["environment"])
        if not is_quiet:
            progress(f"wrote {json_path}")


def progress(message: str) -> None:
    """Prints one line on stderr."""
    print(message, file=sys.stderr, flush=True)


class Steps:
    """Says on stderr which step begins, the time since the first one, and that left if all take as long."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic):
        self._count, self._clock, self._began_s = count, clock, clock()
        self._done = 0

    def begin(self, what: str) -> None:
        """The next one."""
        elapsed_s = self._clock() - self._began_s
        left = f", about {duration(elapsed_s / self._done * (self._count - self._done))} left" if self._done else ""
        self._done += 1
        progress(f"[{self._done} of {self._count}, {duration(elapsed_s)} elapsed{left}] {what}")
