"""`penstock health`: is a server alive, from end to end?"""

import argparse
import sys

from penstock.errors import PenstockError
from penstock.health import probe


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "health",
        help="probe a running server end to end",
        description="Sends an empty stream through every member; exit status 0 if it is answered, else 1.",
    )
    parser.add_argument("--url", default="localhost:8000", metavar="HOST:PORT", help="HTTP address (localhost:8000)")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="seconds to wait at most (5)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line: to stdout if healthy, else to stderr."""
    if not args.timeout > 0:
        raise PenstockError(f"--timeout is {args.timeout:g}, expected a positive number of seconds")
    health = probe(args.url, args.timeout)
    print(
        "healthy:" if health.is_healthy else "unhealthy:", health.reason, file=None if health.is_healthy else sys.stderr
    )
    return 0 if health.is_healthy else 1
