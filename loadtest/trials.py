"""The trials of a search for C120: each with a fresh server and Locust, and what is said of them all at the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.capacity import confirm, search
from loadtest.fresh_server import ServerPlan, fresh_server
from loadtest.locust_run import headless_report, processes_for
from loadtest.verdict_lines import verdict_lines

_QUIETLY = ("--no-html", "--loglevel", "WARNING")
_SLOTS_PER_STREAM = 2
"""An utterance's slot is busy until it is answered; the stream's next one needs another meanwhile."""


@dataclass(frozen=True)
class SearchPlan:
    """What the search tries."""

    first: int
    most: int
    trial_s: float
    """Measured in each trial of the search."""
    confirmation_s: float
    """Measured in the trials that count: 120 by the rule."""
    resolution: float
    """Gap at which the search ends, as a part of the streams."""


@dataclass
class Trials:
    """Runs them, and keeps their reports."""

    model: Path
    context: str | None
    threads: int
    processes: int | None
    """Of the load generator; None for as many as the streams need."""
    protocol: str
    out: Path
    arguments: list[str]
    """Further options of the Locust file."""
    say: Callable[[str], object]
    """Gets what each trial found, line by line."""
    reports: list[dict] = field(default_factory=list)

    def run(self, streams: int, measured_s: float) -> bool:
        """Whether `streams` streams pass on a fresh server."""
        plan = ServerPlan(self.model, self.context, slots_for(streams), self.threads)
        arguments = ["--streams", str(streams), "--minutes", f"{measured_s / 60:.6g}", "--protocol", self.protocol]
        with fresh_server(plan) as server:
            folder = self.out / f"trial-{len(self.reports) + 1:02}-{streams}-streams"
            processes = self.processes or processes_for(streams)
            report = headless_report(
                server.target(self.protocol), processes, folder, [*arguments, *_QUIETLY, *self.arguments]
            )
        self.reports.append(report)
        (window,) = report["windows"]
        for line in verdict_lines(window):
            self.say(line)
        return window["passed"]

    def find_capacity(self, plan: SearchPlan) -> dict:
        """Searches, confirms with longer trials, and returns the report of all of them."""
        found = search(lambda streams: self.run(streams, plan.trial_s), plan.first, plan.most, plan.resolution)
        capacity = confirm(lambda streams: self.run(streams, plan.confirmation_s), found, plan.resolution)
        return capacity_document(self.reports, capacity, plan)


def slots_for(streams: int) -> int:
    """The slots a server needs so that nobody is refused."""
    return _SLOTS_PER_STREAM * streams + 8


def capacity_document(reports: list[dict], streams: int, plan: SearchPlan) -> dict:
    """One report of all trials: the windows in the order of their streams, and the capacity with its limit."""
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
    capacity = f"C{plan.confirmation_s:g} = {streams}" + ("" if streams else ": not a single stream passed")
    if limit is None:
        return f"{capacity}: the most that were to be tried ({plan.most}); nothing ran out"
    used_up = limit["exhausted"]
    why = f"{used_up[0]['resource']} ran out ({used_up[0]['text']})" if used_up else "nothing was seen to be used up"
    return f"{capacity}. At {limit['streams']:g} streams: {'; '.join(limit['reasons'])}; {why}"
