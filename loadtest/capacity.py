"""The search for the maximum sustained streams: doubling, bisection, then a longer trial that confirms.

Each trial has a fresh server and its own Locust process.
"""

import argparse
import time
from collections.abc import Callable

from loadtest.locust_run import ServerPlan, fresh_server, headless_report, processes_for
from penstock.transcription.progress import duration

_SLOTS_PER_STREAM = 2
"""An utterance holds its slot until it is answered; the stream's next utterance needs another one meanwhile."""

Trial = Callable[[int], bool]
"""Streams -> whether they pass."""


class Trials:
    """Runs trials and keeps their reports."""

    def __init__(self, args: argparse.Namespace, arguments: list[str], log: Callable[[str], object]):
        """args: those of `loadtest capacity`. arguments: of the Locust file. log: gets a line when a trial begins."""
        self.reports: list[dict] = []
        self._args, self._arguments, self._log = args, arguments, log
        self._began_s = time.monotonic()

    def run(self, streams: int, measured_s: float) -> bool:
        """Returns whether `streams` streams pass on a fresh server."""
        args, number = self._args, len(self.reports) + 1
        elapsed = duration(time.monotonic() - self._began_s)
        self._log(f"[{elapsed}] trial {number}: {streams} streams for {measured_s:g} s")
        plan = ServerPlan(args.model, args.context, slots_for(streams), args.threads)
        load = ["--protocol", args.protocol]
        load += ["--streams", str(streams), "--minutes", f"{measured_s / 60:.6g}"]
        with fresh_server(plan, args.protocol) as server:
            folder = args.out / f"trial-{number:02}-{streams}-streams"
            processes = args.processes or processes_for(streams)
            self.reports.append(headless_report(server, processes, folder, [*load, *self._arguments]))
        (window,) = self.reports[-1]["windows"]
        return window["passed"]

    def find_capacity(self) -> dict:
        """Searches, confirms with longer trials, and returns the report of all of them."""
        args = self._args
        found = search(lambda streams: self.run(streams, args.trial_seconds), args.first, args.max, args.resolution)
        capacity = confirm(lambda streams: self.run(streams, args.confirm_seconds), found, args.resolution)
        return capacity_document(self.reports, capacity, args.confirm_seconds)


def slots_for(streams: int) -> int:
    """Returns the server's slots with which no stream is rejected."""
    return _SLOTS_PER_STREAM * streams + 8


def search(passes: Trial, first: int, max_streams: int, resolution: float) -> int:
    """Returns the most streams that passed, at most `max_streams`; 0 if not even one does.

    Ends where the gap to the fewest that failed is one stream or `resolution` of those that passed.
    """
    if not 1 <= first <= max_streams:
        raise ValueError(f"the search begins with {first} streams, expected 1 to {max_streams}")
    passed, failed, streams = 0, max_streams + 1, first
    while True:
        if passes(streams):
            passed = streams
        else:
            failed = streams
        if passed == max_streams or (failed <= max_streams and failed - passed <= max(1, int(resolution * passed))):
            return passed
        streams = min(2 * streams, max_streams) if failed > max_streams else (passed + failed) // 2


def confirm(passes: Trial, streams: int, resolution: float) -> int:
    """Returns the most streams, downwards from `streams` in steps of `resolution`, that pass; 0 if none does."""
    while streams and not passes(streams):
        streams = max(0, min(streams - 1, round((1 - resolution) * streams)))
    return streams


def capacity_document(reports: list[dict], streams: int, confirmation_s: float) -> dict:
    """Returns one report of all trials: the windows in the order of their streams, and the capacity with its limit."""
    windows = [window for report in reports for window in report["windows"]]
    failed = [window for window in windows if not window["passed"] and window["streams"] > streams]
    limit = min(failed, key=lambda window: window["streams"], default=None)
    return reports[-1] | {
        "capacity": {
            "streams": streams,
            "confirmation_s": confirmation_s,
            "text": _sentence(streams, limit, confirmation_s),
            "limit": limit,
            "trials": [
                {name: window[name] for name in ("streams", "seconds", "passed", "reasons")} for window in windows
            ],
        },
        "windows": sorted(windows, key=lambda window: (window["streams"], window["seconds"])),
    }


def _sentence(streams: int, limit: dict | None, confirmation_s: float) -> str:
    capacity = f"maximum sustained streams ({confirmation_s:g} s): {streams}"
    if limit is None:
        return f"{capacity}, the largest number tried"
    return f"{capacity}. At {limit['streams']:g} streams: {'; '.join(limit['reasons'])}"
