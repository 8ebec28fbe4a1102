"""`penstock health`: probes a server end to end."""

import argparse
import sys

from penstock.errors import SettingError
from penstock.serving.health import probe
from penstock.serving.settings import ServeOptions

_HTTP_PORT = ServeOptions.option("http_port")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "health",
        help="probe a running server end to end",
        description="Sends an empty stream through all models; exit status 0 if it is answered, else 1.",
    )
    parser.add_argument(
        "--http-url",
        "--url",
        dest="url",
        metavar="HOST:PORT",
        help=f"HTTP address (localhost, port {_HTTP_PORT.variable} or {_HTTP_PORT.default})",
    )
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="maximum wait, in seconds (5)")
    parser.add_argument(
        "--ready", action="store_true", help="also 1 where no new stream may start: starting, draining or full"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line, to stdout if healthy, else to stderr."""
    if not args.timeout > 0:
        raise SettingError(f"--timeout is {args.timeout:g}; accepted: positive numbers")
    health = probe(args.url or _own_url(), args.timeout, args.ready)
    print(
        "healthy:" if health.is_healthy else "not ready:" if args.ready else "unhealthy:",
        health.reason,
        file=None if health.is_healthy else sys.stderr,
    )
    return 0 if health.is_healthy else 1


def _own_url() -> str:
    """Address of the server with the same environment, as in a container."""
    port = _HTTP_PORT.read()
    if port == 0:
        raise SettingError(f"{_HTTP_PORT.variable} is 0 (any free port); give the actual port with --http-url")
    return f"localhost:{port}"
