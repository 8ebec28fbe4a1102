"""`python -m loadtest run | ui | capacity`: load tests against a server that they start, or against a running one.

Further options are those of the Locust file (`python -m loadtest options`) and of Locust itself.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.capacity import SearchPlan, Trials, slots_for
from loadtest.fresh_server import ServerPlan, fresh_server
from loadtest.html_report import write_html
from loadtest.locust_run import (
    LOCUST_FILE,
    Target,
    headless_report,
    processes_for,
    run_locust,
    terminated_as_interrupt,
)
from loadtest.options import CHOSEN_OPTIONS, DEFAULT_OUT, ROOT, add_server_arguments, reject_options, stream_counts
from loadtest.report import write_json
from penstock.errors import PenstockError

_MAX_UI_STREAMS = 256


def main(words: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 1 where a test ran and did not pass, 2 where it could not run."""
    args, rest = _parser().parse_known_args(words)
    try:
        with terminated_as_interrupt():
            return args.run(args, rest)
    except (PenstockError, ValueError) as error:
        _log(f"loadtest: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtest", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run one headless test", allow_abbrev=False)
    run.add_argument(
        "--streams", default="8", metavar="N[,N...]", help="number of streams; several for a ramp or a sweep (8)"
    )
    ui = commands.add_parser("ui", help="start Locust's web UI", allow_abbrev=False)
    capacity = commands.add_parser("capacity", help="search the maximum sustained streams", allow_abbrev=False)
    for command in (run, ui, capacity):
        command.epilog = "`loadtest options` lists the further options: --minutes, --shape, --request-ms, --seed ..."
    for command in (run, ui):
        command.add_argument("--url", metavar="HOST:PORT", help="address of a running server (default: start one)")
        command.add_argument("--metrics-url", default="", metavar="URL", help="metrics URL of the running server")
        command.add_argument(
            "--server-pid", type=int, default=0, metavar="PID", help="process id of the running server"
        )
        command.add_argument("--max-streams", type=int, metavar="N", help="slots of the server that is started")
    capacity.add_argument("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    capacity.add_argument("--max", type=int, default=512, metavar="N", help="streams of the largest trial (512)")
    capacity.add_argument(
        "--trial-seconds", type=float, default=30.0, metavar="S", help="measured time of a search trial (30)"
    )
    capacity.add_argument(
        "--confirm-seconds", type=float, default=120.0, metavar="S", help="measured time of the confirming trial (120)"
    )
    capacity.add_argument("--resolution", type=float, default=0.05, help="relative gap at which the search ends (0.05)")
    for command in (run, ui, capacity):
        add_server_arguments(command)
        command.add_argument(
            "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder of the reports (build/loadtest)"
        )
    options = commands.add_parser("options", help="list all options of `run`, `ui` and `capacity`")
    for command, function in {run: _run, ui: _ui, capacity: _capacity, options: _options}.items():
        command.set_defaults(run=function)
    return parser


def _run(args: argparse.Namespace, rest: list[str]) -> int:
    streams = max(stream_counts(args.streams))
    with _target(args, streams) as target:
        arguments = ["--streams", args.streams, "--protocol", args.protocol, *rest]
        report = headless_report(target, args.processes or processes_for(streams, rest), args.out, arguments)
    return 0 if all(window["passed"] for window in report["windows"]) else 1


def _ui(args: argparse.Namespace, rest: list[str]) -> int:
    with _target(args, _MAX_UI_STREAMS) as target:
        try:
            return run_locust(target, args.processes or 1, args.out, ["--protocol", args.protocol, *rest])
        except KeyboardInterrupt:  # the only way to end a web page
            return 0


def _capacity(args: argparse.Namespace, rest: list[str]) -> int:
    reject_options(rest, CHOSEN_OPTIONS, "the search chooses the load and starts a server for each trial")
    trials = Trials(args.model, args.context, args.threads, args.processes, args.protocol, args.out, rest, _log)
    plan = SearchPlan(args.first, args.max, args.trial_seconds, args.confirm_seconds, args.resolution)
    document = trials.find_capacity(plan)
    write_json(args.out / "capacity.json", document)
    write_html(args.out / "capacity.html", document)
    print(document["capacity"]["text"])
    print(f"wrote {args.out / 'capacity.json'} and capacity.html")
    return 0 if document["capacity"]["streams"] else 1


def _options(_: argparse.Namespace, rest: list[str]) -> int:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUST_FILE), "--help", *rest]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _target(args: argparse.Namespace, streams: int) -> Iterator[Target]:
    """Yields the running server of --url, or a fresh one with slots for `streams` streams."""
    if args.url:
        yield Target(args.url, args.metrics_url, args.server_pid)
        return
    plan = ServerPlan(args.model, args.context, args.max_streams or slots_for(streams), args.threads)
    _log(f"starting a server with {args.model} ...")
    with fresh_server(plan) as server:
        yield server.target(args.protocol)


if __name__ == "__main__":
    sys.exit(main())
