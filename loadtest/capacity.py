"""The search for the maximum sustained streams: doubling, bisection, then a longer trial that confirms.

Each trial has a fresh server and its own Locust process.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.fresh_server import ServerPlan, fresh_server, fresh_target
from loadtest.locust_run import headless_report, processes_for
from penstock.transcription.progress import duration

_SLOTS_PER_STREAM = 2
"""An utterance holds its slot until it is answered; the stream's next utterance needs another one meanwhile."""

Trial = Callable[[int], bool]
"""Streams -> whether they pass."""


@dataclass(frozen=True)
class SearchPlan:
    """Bounds and durations of a search."""

    first: int
    max_streams: int
    trial_s: float
    """Measured in each trial of the search."""
    confirmation_s: float
    """Measured in the trials that confirm the result."""
    resolution: float
    """Relative gap at which the search ends."""


@dataclass
class Trials:
    """Runs trials and keeps their reports."""

    model: Path
    context: str | None
    threads: int
    processes: int | None
    """Load generator processes; None for as many as the streams need."""
    protocol: str
    target: str
    """Of --target."""
    out: Path
    arguments: list[str]
    """Further options of the Locust file."""
    log: Callable[[str], object]
    """Receives a line when a trial begins; its load test itself says the result."""
    reports: list[dict] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def run(self, streams: int, measured_s: float) -> bool:
        """Returns whether `streams` streams pass on a fresh server."""
        elapsed = duration(time.monotonic() - self.began_s)
        self.log(f"[{elapsed}] trial {len(self.reports) + 1}: {streams} streams for {measured_s:g} s")
        plan = ServerPlan(self.model, self.context, slots_for(streams), self.threads)
        arguments = ["--streams", str(streams), "--minutes", f"{measured_s / 60:.6g}", *self.arguments]
        load = ["--protocol", self.protocol, "--target", self.target]
        with fresh_server(plan) as server, fresh_target(server, self.target, self.protocol) as target:
            folder = self.out / f"trial-{len(self.reports) + 1:02}-{streams}-streams"
            processes = self.processes or processes_for(streams, self.target)
            report = headless_report(target, processes, folder, [*load, *arguments])
        self.reports.append(report)
        (window,) = report["windows"]
        return window["passed"]

    def find_capacity(self, plan: SearchPlan) -> dict:
        """Searches, confirms with longer trials, and returns the report of all of them."""
        found = search(lambda streams: self.run(streams, plan.trial_s), plan.first, plan.max_streams, plan.resolution)
        capacity = confirm(lambda streams: self.run(streams, plan.confirmation_s), found, plan.resolution)
        return capacity_document(self.reports, capacity, plan)


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


def capacity_document(reports: list[dict], streams: int, plan: SearchPlan) -> dict:
    """Returns one report of all trials: the windows in the order of their streams, and the capacity with its limit."""
    windows = [window for report in reports for window in report["windows"]]
    failed = [window for window in windows if not window["passed"] and window["streams"] > streams]
    limit = min(failed, key=lambda window: window["streams"], default=None)
    return reports[-1] | {
        "capacity": {
            "streams": streams,
            "confirmation_s": plan.confirmation_s,
            "text": _sentence(streams, limit, plan),
            "limit": limit,
            "trials": [
                {name: window[name] for name in ("streams", "seconds", "passed", "reasons")} for window in windows
            ],
        },
        "windows": sorted(windows, key=lambda window: (window["streams"], window["seconds"])),
    }


def _sentence(streams: int, limit: dict | None, plan: SearchPlan) -> str:
    capacity = f"maximum sustained streams ({plan.confirmation_s:g} s): {streams}"
    if limit is None:
        return f"{capacity}, the largest number tried; no bottleneck"
    bottlenecks = limit["bottlenecks"]
    bottleneck = f"{bottlenecks[0]['resource']} ({bottlenecks[0]['text']})" if bottlenecks else "not found"
    return f"{capacity}. At {limit['streams']:g} streams: {'; '.join(limit['reasons'])}; bottleneck: {bottleneck}"
