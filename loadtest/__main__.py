"""`python -m loadtest run | ui | capacity`: load tests against a server that they start, or against a running one.

Further options are those of the Locust file (`python -m loadtest options`) and of Locust itself.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from loadtest.capacity import Trials, slots_for
from loadtest.locust_run import (
    LOCUST_FILE,
    ServerPlan,
    Target,
    fresh_server,
    fresh_target,
    headless_report,
    processes_for,
    run_locust,
    terminated_as_interrupt,
)
from loadtest.options import (
    CHOSEN_OPTIONS,
    DEFAULT_OUT,
    DIRECT,
    ROOT,
    TARGETS,
    add_server_arguments,
    add_target_argument,
    reject_options,
    stream_counts,
    target_options,
)
from loadtest.report import targets_table, write_report
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
    add("--streams", default="8", metavar="N[,N...]", help="number of streams; several for a ramp or a sweep (8)")
    names = f"{', '.join(TARGETS)}, each also with +speakers; several for a comparison on the same server (direct)"
    add("--target", type=_targets, default=[DIRECT], metavar="T[,T...]", help=names)
    ui = commands.add_parser("ui", help="start Locust's web UI", allow_abbrev=False)
    capacity = commands.add_parser("capacity", help="search the maximum sustained streams", allow_abbrev=False)
    add = capacity.add_argument
    add("--first", type=int, default=16, metavar="N", help="streams of the first trial (16)")
    add("--max", type=int, default=512, metavar="N", help="streams of the largest trial (512)")
    add("--trial-seconds", type=float, default=30.0, metavar="S", help="measured time of a search trial (30)")
    add("--confirm-seconds", type=float, default=120.0, metavar="S", help="measured time of the confirming trial (120)")
    add("--resolution", type=float, default=0.05, help="relative gap at which the search ends (0.05)")
    for command in (run, ui, capacity):
        command.epilog = "`loadtest options` lists the further options: --minutes, --shape, --request-ms, --seed ..."
        add = command.add_argument
        if command is not run:
            add_target_argument(command)
        if command is not capacity:
            add("--url", metavar="HOST:PORT", help="address of a running server or gateway (default: start one)")
            add("--metrics-url", default="", metavar="URL", help="metrics URL of the running server")
            add("--server-pid", type=int, default=0, metavar="PID", help="process id of the running server")
            add("--gateway-pid", type=int, default=0, metavar="PID", help="process id of the running gateway")
            add("--max-streams", type=int, metavar="N", help="slots of the server that is started")
        add_server_arguments(command)
        add("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="folder of the reports (build/loadtest)")
    options = commands.add_parser("options", help="list all options of `run`, `ui` and `capacity`")
    for command, function in {run: _run, ui: _ui, capacity: _capacity, options: _options}.items():
        command.set_defaults(run=function)
    return parser


def _targets(text: str) -> list[str]:
    """Reads the names of --target."""
    names = text.split(",")
    if unknown := sorted(name for name in set(names) if target_options(name)[1] not in TARGETS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected {', '.join(TARGETS)}")
    return names


def _run(args: argparse.Namespace, rest: list[str]) -> int:
    streams = max(stream_counts(args.streams))
    reports: list[tuple[str, dict]] = []
    with _server(args, streams, args.target) as open_target:
        for number, name in enumerate(args.target):
            arguments = ["--streams", args.streams, "--protocol", args.protocol, *target_options(name), *rest]
            earlier = args.target[:number].count(name)
            folder = f"{name}-{earlier + 1}" if earlier else name
            out = args.out / folder if len(args.target) > 1 else args.out
            plain = target_options(name)[1]
            with open_target(plain) as target:
                processes = args.processes or processes_for(streams, plain)
                reports.append((name, headless_report(target, processes, out, arguments)))
    if len(reports) > 1:
        print(targets_table(reports))
    return 0 if all(window["passed"] for _, report in reports for window in report["windows"]) else 1


def _ui(args: argparse.Namespace, rest: list[str]) -> int:
    arguments = ["--protocol", args.protocol, "--target", args.target, *rest]
    with _server(args, _MAX_UI_STREAMS, [args.target]) as open_target, open_target(args.target) as target:
        try:
            return run_locust(target, args.processes or 1, args.out, arguments)
        except KeyboardInterrupt:  # the only way to end a web page
            return 0


def _capacity(args: argparse.Namespace, rest: list[str]) -> int:
    reject_options(rest, CHOSEN_OPTIONS, "the search chooses the load and starts a server for each trial")
    document = Trials(args, rest, _log).find_capacity()
    write_report(args.out / "capacity.json", document)
    print(document["capacity"]["text"])
    print(f"wrote {args.out / 'capacity.json'}, its .md and .png")
    return 0 if document["capacity"]["streams"] else 1


def _options(_: argparse.Namespace, rest: list[str]) -> int:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUST_FILE), "--help", *rest]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _server(
    args: argparse.Namespace, streams: int, targets: list[str]
) -> Iterator[Callable[[str], AbstractContextManager[Target]]]:
    """Yields what opens each of the targets: of the address of --url, or a fresh server with slots for the streams."""
    if args.url:
        if len(targets) > 1:
            raise ValueError(f"--url is the address of one target, not of {', '.join(targets)}")
        running = Target(args.url, args.metrics_url, args.server_pid, args.gateway_pid)
        yield lambda _: nullcontext(running)
        return
    plan = ServerPlan(args.model, args.context, args.max_streams or slots_for(streams), args.threads)
    _log(f"starting a server with {args.model} ...")
    with fresh_server(plan) as server:
        yield partial(fresh_target, server, protocol=args.protocol)


if __name__ == "__main__":
    sys.exit(main())
