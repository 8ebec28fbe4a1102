"""`penstock health`: probes a server end to end."""

import argparse
import os
import sys

from penstock.errors import SettingError
from penstock.serving.health import HTTP_PORT, probe
from penstock_common.listening import ACCEPTED, listen_address, local_host_port

_PORT, _LISTEN = "PENSTOCK_HTTP_PORT", "PENSTOCK_LISTEN"
"""Options of the server, whose declaration imports too much for a probe."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "health",
        description="Sends an empty stream through all models; exit status 0 if it is answered, else 1.",
    )
    parser.add_argument(
        "--http-url",
        "--url",
        dest="url",
        metavar="HOST:PORT",
        help=f"HTTP address (that of {_LISTEN} or localhost, port {_PORT} or {HTTP_PORT})",
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
    port, address = os.environ.get(_PORT) or str(HTTP_PORT), os.environ.get(_LISTEN)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        raise SettingError(f"{_PORT} is {port!r}; accepted: a port")
    if int(port) == 0:
        raise SettingError(f"{_PORT} is 0 (any free port); give the actual port with --http-url")
    try:
        return local_host_port(listen_address(address), port) if address else f"localhost:{port}"
    except ValueError:
        raise SettingError(f"{_LISTEN} is {address!r}; accepted: {ACCEPTED}") from None
