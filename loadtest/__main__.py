"""`python -m loadtest run | ui | capacity | render`: load tests with a server of their own, or against a running one.

Further options are those of the Locust file (`python -m loadtest options`) and of Locust itself.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.fresh_server import ServerPlan, fresh_server
from loadtest.html_report import write_html
from loadtest.json_report import read_json, write_json
from loadtest.locust_run import LOCUST_FILE, Target, headless_report, processes_for, run_locust
from loadtest.options import BUNDLE, CHOSEN_OPTIONS, DEFAULT_OUT, ROOT, refuse_options, stream_counts
from loadtest.termination import terminated_as_interrupt
from loadtest.trials import SearchPlan, Trials, slots_for
from penstock.errors import PenstockError

_LARGEST_UI_TEST = 256


def main(words: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 where a test ran and did not pass, 2 where it could not run."""
    parser = _parser()
    args, rest = parser.parse_known_args(words)
    if rest and args.command == "render":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        with terminated_as_interrupt():
            return args.run(args, rest)
    except (PenstockError, ValueError) as error:
        _say(f"loadtest: error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtest", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one headless test", allow_abbrev=False)
    run.add_argument("--streams", default="8", metavar="N[,N...]", help="how many; several for a ramp or a sweep (8)")
    ui = commands.add_parser("ui", help="Locust's web page", allow_abbrev=False)
    capacity = commands.add_parser("capacity", help="search C120", allow_abbrev=False)
    for command in (run, ui):
        command.add_argument("--url", metavar="HOST:PORT", help="a running server (else one is started)")
        command.add_argument("--metrics-url", default="", metavar="URL", help="the running server's metrics")
        command.add_argument("--server-pid", type=int, default=0, metavar="PID", help="the running server's process")
        command.add_argument("--max-streams", type=int, metavar="N", help="slots of a server that is started")
    capacity.add_argument("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    capacity.add_argument("--most", type=int, default=512, metavar="N", help="streams of the largest trial (512)")
    capacity.add_argument("--trial-seconds", type=float, default=30.0, metavar="S", help="measured when searching (30)")
    capacity.add_argument("--confirm-seconds", type=float, default=120.0, metavar="S", help="measured at last (120)")
    capacity.add_argument("--resolution", type=float, default=0.05, help="gap at which the search ends (0.05)")
    for command in (run, ui, capacity):
        command.add_argument("--protocol", choices=("grpc", "http"), default="grpc", help="(grpc)")
        command.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="of a server that is started")
        command.add_argument("--context", metavar="L,R", help="the same (the checkpoint's first)")
        command.add_argument("--threads", type=int, default=1, metavar="N", help="the same, of each member (1)")
        command.add_argument("--processes", type=int, metavar="N", help="of the load generator (one for 64 streams)")
        command.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="(build/loadtest)")
    render = commands.add_parser("render", help="the HTML of a loadtest.json once more")
    render.add_argument("report", type=Path, metavar="FILE")
    options = commands.add_parser("options", help="what else `run`, `ui` and `capacity` take")
    functions = {run: _run, ui: _ui, capacity: _capacity, render: _render, options: _options}
    for command, function in functions.items():
        command.set_defaults(run=function)
    return parser


def _run(args: argparse.Namespace, rest: list[str]) -> int:
    most = max(stream_counts(args.streams))
    with _target(args, most) as target:
        arguments = ["--streams", args.streams, "--protocol", args.protocol, *rest]
        report = headless_report(target, args.processes or processes_for(most), args.out, arguments)
    return 0 if all(window["passed"] for window in report["windows"]) else 1


def _ui(args: argparse.Namespace, rest: list[str]) -> int:
    with _target(args, _LARGEST_UI_TEST) as target:
        try:
            return run_locust(target, args.processes or 1, args.out, ["--protocol", args.protocol, *rest])
        except KeyboardInterrupt:  # there is no other end of a web page
            return 0


def _capacity(args: argparse.Namespace, rest: list[str]) -> int:
    refuse_options(rest, CHOSEN_OPTIONS, "the search itself chooses the load, on a fresh server for each trial")
    trials = Trials(args.model, args.context, args.threads, args.processes, args.protocol, args.out, rest, _say)
    plan = SearchPlan(args.first, args.most, args.trial_seconds, args.confirm_seconds, args.resolution)
    document = trials.find_capacity(plan)
    write_json(args.out / "capacity.json", document)
    write_html(args.out / "capacity.html", document)
    print(document["capacity"]["text"])
    print(f"wrote {args.out / 'capacity.json'} and capacity.html")
    return 0 if document["capacity"]["streams"] else 1


def _render(args: argparse.Namespace, _: list[str]) -> int:
    path = args.report.with_suffix(".html")
    write_html(path, read_json(args.report))
    print(f"wrote {path}")
    return 0


def _options(_: argparse.Namespace, rest: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(LOCUST_FILE), "--help", *rest], cwd=ROOT
    ).returncode


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _target(args: argparse.Namespace, streams: int) -> Iterator[Target]:
    """The running server that the arguments name, or a fresh one with room for so many streams."""
    if args.url:
        yield Target(args.url, args.metrics_url, args.server_pid)
        return
    plan = ServerPlan(args.model, args.context, args.max_streams or slots_for(streams), args.threads)
    _say(f"starting a server with {args.model} ...")
    with fresh_server(plan) as server:
        yield server.target(args.protocol)


if __name__ == "__main__":
    sys.exit(main())
