"""Faults at full size against real servers: killed clients, cut networks, lost members, hostile requests and so on.

    python scripts/fault_trials.py [--only NAME ...] [--scale 1.0] [--max-streams 20] [--idle-seconds 5] [--json FILE]

Every trial checks each stream's whole history: every final word once, in order, in one stream only. The first one that
fails ends the run with its reason. tests/server/test_faults.py does a little of the same. --scale 0.1 does a tenth.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmark_report import describe, machine, progress, publish  # noqa: E402

from penstock.reporting.table import markdown_table  # noqa: E402
from tests.server import trials_of_input as of_input  # noqa: E402
from tests.server import trials_of_members as of_members  # noqa: E402
from tests.server import trials_of_streams as of_streams  # noqa: E402
from tests.server.conftest import RunningServer, running_server  # noqa: E402
from tests.server.resources import wait_until_free  # noqa: E402
from tests.server.voices import Voice, make_voices, touch  # noqa: E402

MODEL = ROOT / "models" / "an4-rnnt-hybrid"
ON_A_SHARED_SERVER = {
    of_streams.killed_clients: 1000,
    of_streams.never_ended: 20,
    of_streams.started_twice: 200,
    of_streams.two_on_one_id: 100,
    of_streams.after_the_end: 100,
    of_streams.cut_networks: 200,
    of_streams.too_many: 20,
    of_streams.never_reading: 3000,
    of_streams.short_streams: 10_000,
    of_input.hostile_grpc: 5000,
    of_input.hostile_http: 5000,
    of_input.random_bytes: 500,
}
MEMBERS = ("features", "encoder", "decoder")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def main() -> int:
    """Runs the trials and prints a table."""
    args = read_arguments()
    where, voices, rows = machine(1), make_voices(MODEL), []
    trials = [*shared_trials(args, voices), *own_trials(voices)]
    for name, run in trials:
        if args.only and not any(part in name for part in args.only):
            continue
        started = time.monotonic()
        figures = run()
        rows.append({"trial": name, "took_s": round(time.monotonic() - started, 1), **figures})
        progress(f"{name}: {figures}")
    table = markdown_table(("trial", "took", "measured"), [as_row(row) for row in rows], left=3)
    publish(f"{describe(where)}\n\n{table}", {"machine": where, "trials": rows}, args.json)
    return 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="trials whose names contain one of these")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--max-streams", type=int, default=20)
    parser.add_argument("--idle-seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def shared_trials(args: argparse.Namespace, voices: list[Voice]) -> Iterator[tuple[str, Callable[[], dict]]]:
    """Each on a server that the trial before has left as it found it."""
    for trial, full in ON_A_SHARED_SERVER.items():
        count = max(2, round(full * args.scale))

        def run(trial: Callable = trial, count: int = count) -> dict:
            with server(args) as running:
                figures = trial(running, voices, count)
                wait_until_free(running, lambda: touch(running), running.idle_s + 10)
                return figures

        yield trial.__name__, run


def own_trials(voices: list[Voice]) -> Iterator[tuple[str, Callable[[], dict]]]:
    """Each ends its server."""
    yield "stopped_under_load", lambda: of_members.stopped_under_load(MODEL, voices)
    for member in MEMBERS:
        for number in SIGNALS:
            yield (
                f"lost_member {member} {number.name}",
                lambda member=member, number=number: of_members.lost_member(MODEL, voices, member, number),
            )


@contextmanager
def server(args: argparse.Namespace) -> Iterator[RunningServer]:
    """A fresh one."""
    yield from running_server(MODEL, args.max_streams, args.idle_seconds)


def as_row(row: dict) -> tuple[str, str, str]:
    """A row of the table."""
    figures = {name: value for name, value in row.items() if name not in ("trial", "took_s")}
    told = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )
    return row["trial"], f"{row['took_s']} s", told


if __name__ == "__main__":
    sys.exit(main())
