"""`python -m trials.soak`: a constant load on a fresh server; memory slope after warm-up, lost streams, late chunks,
and whether a recording has the same text each time.

Further options are those of the Locust file (`python -m loadtest options`).
"""

import argparse
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from loadtest.capacity import slots_for
from loadtest.locust_run import ServerPlan, fresh_server, headless_report, processes_for, terminated_as_interrupt
from loadtest.options import DEFAULT_OUT, add_server_arguments, reject_options
from loadtest.processes import GENERATOR, Usage, read_usage
from loadtest.report import REPORT, write_report
from penstock.errors import PenstockError, RunError

_MAX_INTERVAL_S = 10.0
_MIN_READINGS = 60
_WARM_UP_SHARE = 1 / 6
_WHOLE_SHARE = 0.98
"""Minimum share of the planned time; a soak that ended earlier does not pass."""


def main(words: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 where the soak did not pass, 2 where it could not run."""
    parser, words = _parser(), sys.argv[1:] if words is None else words
    args, rest = parser.parse_known_args(words)
    if not (args.streams >= 1 and args.minutes > 0 and args.max_growth >= 0):
        parser.error("--streams must be 1 or more, --minutes above 0, --max-growth 0 or more")
    if not 0 <= (args.warm_up_minutes or 0.0) < args.minutes:
        parser.error(f"--warm-up-minutes is {args.warm_up_minutes:g}, expected 0 or more, and less than --minutes")
    try:
        reject_options(rest, "a soak runs a constant load on its own server")
        with terminated_as_interrupt():
            soak = _soak(args, rest, shlex.join(["python", "-m", "trials.soak", *words]))
    except (PenstockError, ValueError, OSError) as error:
        print(f"soak: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print("\n".join(soak["lines"]))
    return 0 if soak["passed"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trials.soak", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--streams", type=int, default=8, metavar="N", help="(8)")
    add("--minutes", type=float, default=60.0, metavar="M", help="measured time (60)")
    add("--warm-up-minutes", type=float, metavar="M", help="memory readings before it do not count (a sixth)")
    add("--max-growth", type=float, default=2.0, metavar="MIB", help="allowed memory slope of a process, MiB per h (2)")
    add_server_arguments(parser)
    add("--out", type=Path, default=DEFAULT_OUT / "soak", metavar="DIR", help="(build/loadtest/soak)")
    return parser


class Readings:
    """Reads the machine's use every `every_s` seconds in a thread. Use as a context manager.

    Raises RunError on exit if a reading failed.
    """

    def __init__(self, read: Callable[[], Usage], every_s: float):
        self.readings: list[Usage] = []
        """Ordered by time."""
        self._read = read
        self._every_s = every_s
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak readings", daemon=True)

    def __enter__(self) -> "Readings":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error and kind is None:
            raise RunError(f"a reading failed: {type(self._error).__name__}: {self._error}") from self._error

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            try:
                self.readings.append(self._read())
            except Exception as error:  # noqa: BLE001  raised at the end
                self._error = error
                return
            next_s = max(next_s + self._every_s, time.monotonic())


def _soak(args: argparse.Namespace, rest: list[str], command: str) -> dict:
    """Runs the soak, writes its reports and returns the report's part `soak`."""
    load_s = 60 * args.minutes
    warm_up_s = _WARM_UP_SHARE * load_s if args.warm_up_minutes is None else 60 * args.warm_up_minutes
    plan = ServerPlan(args.model, args.context, slots_for(args.streams), args.threads)
    load = ["--streams", str(args.streams), "--minutes", f"{args.minutes:.6g}", "--protocol", args.protocol]
    processes = args.processes or processes_for(args.streams)
    with (
        fresh_server(plan, args.protocol) as server,
        Readings(lambda: read_usage(server.process_id), min(_MAX_INTERVAL_S, load_s / _MIN_READINGS)) as taken,
    ):
        try:
            report = headless_report(server, processes, args.out, [*load, *rest])
        except KeyboardInterrupt:  # report what was measured until then
            if not (args.out / REPORT).exists():
                raise
            report = json.loads((args.out / REPORT).read_text(encoding="utf-8"))
    report["circumstances"]["command"] = command
    report["soak"] = soak_document(taken.readings, report["windows"][0], load_s, warm_up_s, args.max_growth)
    write_report(args.out / REPORT, report)
    print(f"wrote {args.out / REPORT} and its .md")
    return report["soak"]


def soak_document(
    readings: Sequence[Usage], window: dict, load_s: float, warm_up_s: float, max_growth_mib_per_h: float
) -> dict:
    """Returns the result as JSON values; `window`: the load test's only one. The first `warm_up_s` do not count."""
    counted = [reading for reading in readings if reading.time_s >= readings[0].time_s + warm_up_s]
    names = sorted({name for reading in counted for name in reading.pss_mib} - {GENERATOR})
    lost = window["errors"]["count"] + window["rejections"]["count"]
    reasons, lines, processes = list(window["reasons"]), [], {}
    words = window["words"]
    several_texts = f"{words['recordings_with_several_texts']} of {words['recordings']} recordings with several texts"
    if words["recordings_with_several_texts"]:
        reasons.append(several_texts)
    if window["seconds"] < _WHOLE_SHARE * load_s:
        reasons.append(f"ended after {window['seconds'] / 60:.1f} of {load_s / 60:.1f} minutes")
    if len(counted) < 3 or not names:
        reasons.append(f"{len(counted)} readings of the server's processes after the warm-up are too few")
        names = []
    for name in names:
        if not all(name in reading.pss_mib for reading in counted):
            reasons.append(f"{name} did not run for the whole test")
            continue
        slope = memory_slope([reading.time_s for reading in counted], [reading.pss_mib[name] for reading in counted])
        last_mib = counted[-1].pss_mib[name]
        processes[name] = {"pss_mib": last_mib, "slope_mib_per_h": slope}
        lines.append(f"  {name}: {last_mib:.1f} MiB, {slope:+.2f} MiB per hour")
        if slope > max_growth_mib_per_h:
            reasons.append(f"{name} grows by {slope:.2f} MiB per hour, {max_growth_mib_per_h:g} are allowed")
    seconds = counted[-1].time_s - counted[0].time_s if counted else 0.0
    head = f"{'PASS' if not reasons else 'FAIL'}: {seconds / 60:.1f} minutes after {warm_up_s / 60:.1f} of warm-up"
    losses = f"{lost} of {window['utterances']} streams lost, {window['late_chunks']} of {window['chunks']} chunks late"
    return {
        "warm_up_s": warm_up_s,
        "seconds": seconds,
        "max_growth_mib_per_h": max_growth_mib_per_h,
        "processes": processes,
        "streams_lost": lost,
        "late_chunks": window["late_chunks"],
        "passed": not reasons,
        "reasons": reasons,
        "lines": [head, *lines, f"  {losses}, {several_texts}", *(f"  because: {reason}" for reason in reasons)],
    }


def memory_slope(times_s: Sequence[float], sizes_mib: Sequence[float]) -> float:
    """Returns the slope of the least-squares line, in MiB per hour."""
    hours = (np.asarray(times_s) - times_s[0]) / 3600
    return float(np.polyfit(hours, sizes_mib, 1)[0])


if __name__ == "__main__":
    sys.exit(main())
