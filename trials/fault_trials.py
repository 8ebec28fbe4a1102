"""Fault trials at full size against real servers: killed clients, cut connections, lost stages, hostile requests.

    python -m trials.fault_trials [--only NAME ...] [--list] [--scale 1.0] [--max-streams 20] [--idle-seconds 3]
        [--json build/faults/faults.json]

Every trial checks each stream's whole history: every final word once, in order, in one stream only. A trial that fails
is recorded with its reason, the others go on, and the exit status is 1. tests/server/test_faults.py runs small trials;
--scale 0.1 runs a tenth. The results are written after every trial, as JSON and beside it as the table of
docs/reliability.md; runs of parts (--only) with the same file and commit add up in it.
"""

import argparse
import itertools
import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import describe, environment, progress, publish
from penstock.reporting import markdown_table, three_digits
from trials.faults import batched, fleet, gateway, hostile_input, networks, streams
from trials.faults import server as server_trials
from trials.server.recordings import Recording, make_recordings
from trials.server.resources import run_trial
from trials.server.running import RunningServer, running_server

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
SHARED_SERVER_TRIALS = {
    streams.killed_clients: 1000,
    batched.killed_batched_clients: 50,
    batched.lost_requests: 20,
    streams.never_ended: 20,
    streams.started_twice: 200,
    streams.two_on_one_id: 100,
    streams.after_the_end: 100,
    networks.cut_networks: 200,
    networks.stalled_networks: 50,
    networks.cut_requests: 50,
    streams.too_many: 20,
    networks.unread_replies: 1500,
    streams.short_streams: 10_000,
    batched.hostile_rows: 2000,
    hostile_input.hostile_grpc: 5000,
    hostile_input.hostile_http: 5000,
    hostile_input.random_bytes: 500,
    gateway.killed_gateway_clients: 1000,
    gateway.stalled_gateway_clients: 16,
    gateway.hostile_gateway_grpc: 5000,
    gateway.hostile_gateway_http: 5000,
    server_trials.restarted_gateway: 10,
}
MIN_SLOTS = {name: 64 for name in ("hostile_grpc", "hostile_http", "hostile_gateway_grpc", "hostile_gateway_http")}
"""Hostile requests open streams faster than the idle timeout closes them; the other stream must still get a slot."""
MODELS = ("features", "encoder", "decoder")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_ABOUT = ("trial", "took_s", "cpu_s")
UNITS = {"s": "s", "ms": "ms", "mb": "MiB", "kb": "KiB"}


class Trial(NamedTuple):
    """One trial at its size."""

    name: str
    run: Callable[[list[Recording]], dict]
    """Returns its figures; raises AssertionError where it failed."""


def main(words: list[str] | None = None) -> int:
    """Runs the trials, writes the table; returns the exit status."""
    args = read_arguments(words)
    trials = [
        trial
        for trial in (*shared_trials(args), *own_trials())
        if not args.only or any(part in trial.name for part in args.only)
    ]
    if not trials:
        progress(f"fault_trials: error: no trial is called {' or '.join(args.only)}; --list names them all")
        return 2
    if args.list:
        print("\n".join(trial.name for trial in trials))
        return 0
    where, recordings = environment(1), make_recordings(BUNDLE)
    command = shlex.join(["python", "-m", "trials.fault_trials", *(sys.argv[1:] if words is None else words)])
    rows, commands = earlier_part(args.json, where["commit"])
    where["command"] = "; ".join(dict.fromkeys([*commands, command]))
    for trial in trials:
        rows[trial.name] = carry_out(trial, recordings)
        if args.json:
            write(args.json, where, rows)
    print(to_markdown(where, list(rows.values())))
    return 1 if any("failed" in rows[trial.name] for trial in trials) else 0


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trials whose names contain one of these")
    parser.add_argument("--list", action="store_true", help="list the trials and exit")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (1)")
    parser.add_argument("--max-streams", type=int, default=20, help="slots of a server (20)")
    parser.add_argument("--idle-seconds", type=float, default=3.0, help="idle timeout (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the figures; the table goes beside it")
    return parser.parse_args(words)


def shared_trials(args: argparse.Namespace) -> Iterator[Trial]:
    """Yields the trials after which the server must have freed its resources."""
    for trial, full in SHARED_SERVER_TRIALS.items():
        count, slots = max(2, round(full * args.scale)), max(args.max_streams, MIN_SLOTS.get(trial.__name__, 1))

        def run(recordings: list[Recording], trial: Callable = trial, count: int = count, slots: int = slots) -> dict:
            with server(slots, args.idle_seconds) as running:
                return run_trial(trial, running, recordings, count)

        yield Trial(trial.__name__, run)


def own_trials() -> Iterator[Trial]:
    """Yields the trials with a server of their own, which most of them end."""
    yield Trial("stopped_under_load", lambda recordings: server_trials.stopped_under_load(BUNDLE, recordings))
    yield Trial("restarted_server", lambda recordings: server_trials.restarted_server(BUNDLE, recordings))
    for trial in fleet.TRIALS:
        yield Trial(f"fleet {trial.__name__}", lambda recordings, trial=trial: trial(BUNDLE, recordings))
    for model, number in itertools.product(MODELS, SIGNALS):

        def lose(recordings: list[Recording], model: str = model, number: signal.Signals = number) -> dict:
            return server_trials.lost_stage(BUNDLE, recordings, model, number)

        yield Trial(f"lost_stage {model} {number.name}", lose)


@contextmanager
def server(max_streams: int, idle_s: float) -> Iterator[RunningServer]:
    """Starts a server with the default queue delay; the tests have none."""
    yield from running_server(BUNDLE, max_streams, idle_s, {"PENSTOCK_QUEUE_DELAY_MS": ""})


def carry_out(trial: Trial, recordings: list[Recording]) -> dict:
    """Returns its figures, its time and, if it failed, the reason. No failure ends the other trials."""
    started_s, before = time.monotonic(), os.times()
    row: dict = {"trial": trial.name}
    try:
        figures = trial.run(recordings)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    after = os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])  # of this process and of its children that have ended, the server included
    row |= {"took_s": round(time.monotonic() - started_s, 1), "cpu_s": round(cpu_s, 1), **figures}
    progress(f"{trial.name}: {row}")
    return row


def earlier_part(path: Path | None, commit: str) -> tuple[dict[str, dict], list[str]]:
    """Returns rows by trial and commands of an earlier part of the run; empty if its commit was another."""
    if path is None or not path.exists():
        return {}, []
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["machine"]["commit"] != commit:
        progress(f"{path} is of commit {document['machine']['commit']}: it is overwritten")
        return {}, []
    return {row["trial"]: row for row in document["trials"]}, document["machine"]["command"].split("; ")


def write(path: Path, where: dict, rows: dict[str, dict]) -> None:
    """Writes the figures so far, and the table."""
    ordered = list(rows.values())
    publish(to_markdown(where, ordered), {"machine": where, "trials": ordered}, path, is_quiet=True)


def to_markdown(where: dict, rows: list[dict]) -> str:
    """Returns the table with its circumstances for docs/reliability.md."""
    table = markdown_table(("trial", "took", "seen"), [as_row(row) for row in rows], left=3)
    return f"{table}\n\n`{where['command']}`; {describe(where)}"


def as_row(row: dict) -> tuple[str, str, str]:
    """Returns a row of the table."""
    if "failed" in row:
        seen = "**failed**: " + " ".join(str(row["failed"]).split()).replace("|", "/")[:300]
    else:
        known = {*_ABOUT, *(name for name, value in row.items() if value in row["trial"].split())}  # its name has them
        figures = {name: value for name, value in row.items() if name not in known}
        seen = ", ".join(phrase(name, value) for name, value in figures.items())
    return f"`{row['trial']}`", f"{row['took_s']:.0f} s", seen


def phrase(name: str, value: float | int | str) -> str:
    """Formats a figure; its name ends in a unit, maybe followed by `per_...` or `max`."""
    shown = three_digits(value) if isinstance(value, float) else str(value)
    if name.isupper() or " " in name:  # a status
        return f"{name}: {shown}"
    words = name.split("_")
    place = next((i for i, word in enumerate(words) if word in UNITS), len(words))
    unit, rest = [UNITS[word] for word in words[place : place + 1]], words[place + 1 :]
    most = ["at most"] if "max" in rest else []
    return " ".join([*words[:place], *most, shown, *unit, *(word for word in rest if word != "max")])


if __name__ == "__main__":
    del __file__  # else every client process would import this file first, torch included
    sys.exit(main())
