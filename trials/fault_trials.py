"""Fault trials of servers and fleets at full size: stopped and restarted servers, lost stages, moved streams.

    python -m trials.fault_trials [--only NAME ...] [--list] [--json build/faults/faults.json]

Every trial checks each stream's whole history: every final word once, in order, in one stream only. A trial that fails
is recorded with its reason, the others go on, and the exit status is 1. tests/server/test_faults.py runs small trials.
"""

import argparse
import itertools
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import environment, progress
from loadtest.options import BUNDLE
from loadtest.processes import MODELS
from penstock.errors import RunError
from trials.faults import fleet, server
from trials.server.recordings import Recording, make_recordings

SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


class Trial(NamedTuple):
    """One trial at its size."""

    name: str
    run: Callable[[Path, list[Recording]], dict]
    """Returns its figures; raises AssertionError where it failed."""


def main(words: list[str] | None = None) -> int:
    """Runs the trials; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trials whose names contain one of these")
    parser.add_argument("--list", action="store_true", help="list the trials and exit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the figures")
    args = parser.parse_args(words)
    trials = [trial for trial in all_trials() if not args.only or any(part in trial.name for part in args.only)]
    if not trials:
        progress(f"fault_trials: error: no trial is called {' or '.join(args.only)}; --list names them all")
        return 2
    if args.list:
        print("\n".join(trial.name for trial in trials))
        return 0
    document: dict = {"machine": environment(1), "trials": []}
    recordings = make_recordings(BUNDLE)
    for trial in trials:
        document["trials"].append(carry_out(trial, recordings))
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any("failed" in row for row in document["trials"]))


def all_trials() -> Iterator[Trial]:
    """Yields the trials; each has servers of its own."""
    for run in (server.stopped_under_load, server.restarted_server, server.restarted_gateway):
        yield Trial(run.__name__, run)
    for run in fleet.TRIALS:
        yield Trial(f"fleet {run.__name__}", run)
    for model, number in itertools.product(MODELS, SIGNALS):
        yield Trial(f"lost_stage {model} {number.name}", partial(server.lost_stage, name=model, number=number))


def carry_out(trial: Trial, recordings: list[Recording]) -> dict:
    """Returns its figures, its time and, if it failed, the reason. No failure ends the other trials."""
    started_s = time.monotonic()
    try:
        figures = trial.run(BUNDLE, recordings)
    except Exception as error:  # noqa: BLE001
        if not isinstance(error, RunError):  # its message says what is wrong
            traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    row = {"trial": trial.name, "took_s": round(time.monotonic() - started_s, 1), **figures}
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    del __file__  # else every client process would import this file first, torch included
    sys.exit(main())
