"""Faults at full size against real servers: killed clients, cut networks, lost members, hostile requests and so on.

    python scripts/fault_trials.py [--only NAME ...] [--list] [--scale 1.0] [--max-streams 20] [--idle-seconds 3]
        [--json build/faults/faults.json]

Every trial checks each stream's whole history: every final word once, in order, in one stream only. One that fails is
written down with its reason, the others go on, and the exit status is 1. tests/server/test_faults.py does a little of
the same. --scale 0.1 does a tenth. The results are written after every trial, as JSON and beside it as the table of
docs/faults.md; parts of a run (--only) that name the same file, at the same commit, add up in it.
"""

import argparse
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmark_report import describe, machine, progress, publish  # noqa: E402

from penstock.patience import patience_library  # noqa: E402
from penstock.reporting.table import markdown_table, three_digits  # noqa: E402
from penstock.settings import QUEUE_DELAY_MS  # noqa: E402
from tests.server import trials_of_input as of_input  # noqa: E402
from tests.server import trials_of_members as of_members  # noqa: E402
from tests.server import trials_of_networks as of_networks  # noqa: E402
from tests.server import trials_of_streams as of_streams  # noqa: E402
from tests.server.conftest import RunningServer, running_server  # noqa: E402
from tests.server.resources import run_trial  # noqa: E402
from tests.server.voices import Voice, make_voices  # noqa: E402

MODEL = ROOT / "models" / "an4-rnnt-hybrid"
ON_A_SHARED_SERVER = {
    of_streams.killed_clients: 1000,
    of_streams.never_ended: 20,
    of_streams.started_twice: 200,
    of_streams.two_on_one_id: 100,
    of_streams.after_the_end: 100,
    of_networks.cut_networks: 200,
    of_networks.silent_networks: 50,
    of_networks.cut_requests: 50,
    of_streams.too_many: 20,
    of_streams.never_reading: 3000,
    of_streams.short_streams: 10_000,
    of_input.hostile_grpc: 5000,
    of_input.hostile_http: 5000,
    of_input.random_bytes: 500,
}
LEAST_SLOTS = {of_input.hostile_grpc: 64, of_input.hostile_http: 64}
"""Hostile requests open streams, and open them again, faster than the idle limit closes them; a full server that
refuses the neighbour would prove nothing."""
MEMBERS = ("features", "encoder", "decoder")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
HELD_UP_TIMES, HELD_UP_S = 20, 1.5
UNITS = {"s": "s", "ms": "ms", "mb": "MiB", "kb": "KiB"}


class Trial(NamedTuple):
    """One of them, at its size."""

    name: str
    run: Callable[[list[Voice]], dict]
    """Returns its figures and raises AssertionError where it failed."""


def main(words: list[str] | None = None) -> int:
    """Runs the trials, writes the table; returns the exit status."""
    args = read_arguments(words)
    trials = [trial for trial in (*shared_trials(args), *own_trials(args.scale)) if is_wanted(trial.name, args.only)]
    if not trials:
        progress(f"fault_trials: error: no trial is called {' or '.join(args.only)}; --list names them all")
        return 2
    if args.list:
        print("\n".join(trial.name for trial in trials))
        return 0
    where, voices = machine(1), make_voices(MODEL)
    command = shlex.join(["fault_trials.py", *(sys.argv[1:] if words is None else words)])
    rows, commands = earlier_part(args.json, where["commit"])
    where["command"] = "; ".join(dict.fromkeys([*commands, command]))
    for trial in trials:
        rows[trial.name] = carry_out(trial, voices)
        if args.json:
            write(args.json, where, rows)
    print(to_markdown(where, list(rows.values())))
    return 1 if any("failed" in rows[trial.name] for trial in trials) else 0


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trials whose names contain one of these")
    parser.add_argument("--list", action="store_true", help="name the trials and do nothing")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (1)")
    parser.add_argument("--max-streams", type=int, default=20, help="slots of a server (20)")
    parser.add_argument("--idle-seconds", type=float, default=3.0, help="silence that expires a stream (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the figures; the table goes beside it")
    return parser.parse_args(words)


def is_wanted(name: str, only: list[str] | None) -> bool:
    """Whether the command line asks for a trial of this name."""
    return not only or any(part in name for part in only)


def shared_trials(args: argparse.Namespace) -> Iterator[Trial]:
    """Each on a server that must hold no more afterwards than before."""
    for trial, full in ON_A_SHARED_SERVER.items():
        count, slots = max(2, round(full * args.scale)), max(args.max_streams, LEAST_SLOTS.get(trial, 1))

        def run(voices: list[Voice], trial: Callable = trial, count: int = count, slots: int = slots) -> dict:
            with server(slots, args.idle_seconds) as running:
                return run_trial(trial, running, voices, count)

        yield Trial(trial.__name__, run)


def own_trials(scale: float) -> Iterator[Trial]:
    """Each on a server of its own, which most of them end."""
    if patience_library() is not None:  # else Triton loses its members by that
        times = max(2, round(HELD_UP_TIMES * scale))
        yield Trial("held_up", lambda voices: of_members.held_up(MODEL, voices, times, HELD_UP_S))
    yield Trial("stopped_under_load", lambda voices: of_members.stopped_under_load(MODEL, voices))
    for member in MEMBERS:
        for number in SIGNALS:
            yield Trial(
                f"lost_member {member} {number.name}",
                lambda voices, member=member, number=number: of_members.lost_member(MODEL, voices, member, number),
            )


@contextmanager
def server(max_streams: int, idle_s: float) -> Iterator[RunningServer]:
    """A fresh one, with the queue delay as it is delivered: the tests do without."""
    yield from running_server(MODEL, max_streams, idle_s, {QUEUE_DELAY_MS.variable: ""})


def carry_out(trial: Trial, voices: list[Voice]) -> dict:
    """Its figures, how long it took and, if it failed, why. A failure of any kind ends no other trial."""
    started_s, before = time.monotonic(), os.times()
    row: dict = {"trial": trial.name}
    try:
        figures = trial.run(voices)
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        figures = {"failed": f"{type(error).__name__}: {error}"}
    after = os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])  # of this process and of those that have ended, the server's among them
    row |= {"took_s": round(time.monotonic() - started_s, 1), "cpu_s": round(cpu_s, 1), **figures}
    progress(f"{trial.name}: {row}")
    return row


def earlier_part(path: Path | None, commit: str) -> tuple[dict[str, dict], list[str]]:
    """What another part of the run has written: trial -> row, and its commands. Nothing if the commit was another."""
    if path is None or not path.exists():
        return {}, []
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["machine"]["commit"] != commit:
        progress(f"{path} is of commit {document['machine']['commit']}: it begins anew")
        return {}, []
    return {row["trial"]: row for row in document["trials"]}, document["machine"]["command"].split("; ")


def write(path: Path, where: dict, rows: dict[str, dict]) -> None:
    """The figures so far, and the table."""
    ordered = list(rows.values())
    publish(to_markdown(where, ordered), {"machine": where, "trials": ordered}, path, is_quiet=True)


def to_markdown(where: dict, rows: list[dict]) -> str:
    """The table with its circumstances, as a document has it."""
    table = markdown_table(("trial", "took", "seen"), [as_row(row) for row in rows], left=3)
    return f"{table}\n\n`{where['command']}`; {describe(where)}"


def as_row(row: dict) -> tuple[str, str, str]:
    """A row of the table."""
    if "failed" in row:
        told = "**failed**: " + " ".join(str(row["failed"]).split()).replace("|", "/")[:300]
    else:
        figures = {name: value for name, value in row.items() if name not in ("trial", "took_s", "cpu_s")}
        told = ", ".join(phrase(name, value) for name, value in figures.items() if not is_in_name(row, value))
    return f"`{row['trial']}`", f"{row['took_s']:.0f} s", told


def is_in_name(row: dict, value: object) -> bool:
    """True for what the trial's name says already."""
    return isinstance(value, str) and value in row["trial"].split()


def phrase(name: str, value: float | int | str) -> str:
    """A figure in words: its name ends in a unit, maybe with what it is for each of, or with `max`."""
    shown = three_digits(value) if isinstance(value, float) else str(value)
    if name.isupper() or " " in name:  # a status
        return f"{name}: {shown}"
    words = name.split("_")
    place = next((i for i, word in enumerate(words) if word in UNITS), len(words))
    unit, rest = [UNITS[word] for word in words[place : place + 1]], words[place + 1 :]
    most = ["at most"] if "max" in rest else []
    return " ".join([*words[:place], *most, shown, *unit, *(word for word in rest if word != "max")])


if __name__ == "__main__":
    del __file__  # else every client process that is to be killed would import this file first, torch and all
    sys.exit(main())
