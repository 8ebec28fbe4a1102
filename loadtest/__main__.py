"""`python -m loadtest run | ui | capacity`: load tests against a server that they start, or against a running one.

Further options are those of the Locust file (`python -m loadtest options`) and of Locust itself.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.capacity import Trials, slots_for
from loadtest.locust_run import (
    ServerPlan,
    Target,
    fresh_server,
    headless_report,
    processes_for,
    run_locust,
    terminated_as_interrupt,
)
from loadtest.options import (
    DEFAULT_OUT,
    GATEWAYS,
    add_arguments,
    add_server_arguments,
    add_target_arguments,
    reject_options,
    stream_counts,
)
from loadtest.report import write_report
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
    add = run.add_argument
    add("--streams", default="8", metavar="N[,N...]", help="number of streams; several are tested in turn (8)")
    ui = commands.add_parser("ui", help="start Locust's web UI", allow_abbrev=False)
    capacity = commands.add_parser("capacity", help="search the maximum sustained streams", allow_abbrev=False)
    add = capacity.add_argument
    add("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    add("--max", type=int, default=512, metavar="N", help="streams of the largest trial (512)")
    add("--trial-seconds", type=float, default=30.0, metavar="S", help="measured time of a search trial (30)")
    add("--confirm-seconds", type=float, default=120.0, metavar="S", help="measured time of the confirming trial (120)")
    add("--resolution", type=float, default=0.05, help="relative gap at which the search ends (0.05)")
    for command in (run, ui, capacity):
        command.epilog = "`loadtest options` lists the further options: --minutes, --request-ms, --seed ..."
        add = command.add_argument
        if command is not capacity:
            add_target_arguments(command)
            add("--url", metavar="HOST:PORT", help="address of a running server or gateway (default: start one)")
            add("--max-streams", type=int, metavar="N", help="slots of the server that is started")
        add_server_arguments(command)
        add("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder of the reports (build/loadtest)")
    options = commands.add_parser("options", help="list the further options of `run`, `ui` and `capacity`")
    for command, function in {run: _run, ui: _ui, capacity: _capacity, options: _options}.items():
        command.set_defaults(run=function)
    return parser


def _run(args: argparse.Namespace, rest: list[str]) -> int:
    streams = max(stream_counts(args.streams))
    arguments = ["--streams", args.streams, "--protocol", args.protocol, "--target", args.target, *rest]
    with _target(args, streams) as target:
        report = headless_report(target, args.processes or processes_for(streams, args.target), args.out, arguments)
    return 0 if all(window["passed"] for window in report["windows"]) else 1


def _ui(args: argparse.Namespace, rest: list[str]) -> int:
    arguments = ["--protocol", args.protocol, "--target", args.target, *rest]
    with _target(args, _MAX_UI_STREAMS) as target:
        try:
            return run_locust(target, args.processes or 1, args.out, arguments)
        except KeyboardInterrupt:  # the only way to end a web page
            return 0


def _capacity(args: argparse.Namespace, rest: list[str]) -> int:
    reject_options(rest, "the search chooses the load and starts a server for each trial")
    document = Trials(args, rest, _log).find_capacity()
    write_report(args.out / "capacity.json", document)
    print(document["capacity"]["text"])
    print(f"wrote {args.out / 'capacity.json'} and its .md")
    return 0 if document["capacity"]["streams"] else 1


def _options(_: argparse.Namespace, __: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m loadtest", add_help=False, epilog="`locust --help` lists Locust's own.")
    add_arguments(parser)
    parser.print_help()
    return 0


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _target(args: argparse.Namespace, streams: int) -> Iterator[Target]:
    """The address of --url, or a fresh server with slots for the streams."""
    if args.url:
        yield Target(args.url, args.metrics_url, args.server_pid, args.gateway_pid)
        return
    if args.target in GATEWAYS:
        raise ValueError(f"--target {args.target}: --url has to name a running gateway")
    plan = ServerPlan(args.model, args.context, args.max_streams or slots_for(streams), args.threads)
    _log(f"starting a server with {args.model} ...")
    with fresh_server(plan, args.protocol) as server:
        yield server


if __name__ == "__main__":
    sys.exit(main())
