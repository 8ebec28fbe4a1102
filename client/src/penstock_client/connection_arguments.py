"""The command line's arguments that say where the server is and how it is reached. Knows no network."""

import argparse
import math
from typing import get_args

from penstock_client.connection_options import ConnectionOptions
from penstock_client.endpoint import ProtocolName

_DEFAULT_URLS = {
    "grpc": "localhost:8001",
    "grpcs": "localhost:8001",
    "http": "localhost:8000",
    "https": "localhost:8000",
}


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments, as a group of their own."""
    add = parser.add_argument_group("the server").add_argument
    add("--url", metavar="HOST:PORT", help="its address (localhost:8001, for HTTP localhost:8000)")
    add("--protocol", choices=get_args(ProtocolName), default="grpc", help="grpcs and https are inside TLS (grpc)")
    add("--timeout", type=seconds, default=10.0, metavar="S", help="longest silence of the server (10)")
    add("--connect-retry", type=_seconds_or_none, default=1.0, metavar="S", help="go on trying to connect (1)")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="send this header; may be given again")
    add("--root-certificates", metavar="FILE", help="PEM file of the authorities to trust")
    add("--client-certificate", metavar="FILE", help="PEM file of our certificate, with --client-key")
    add("--client-key", metavar="FILE", help="PEM file of its key")


def read_url(args: argparse.Namespace) -> str:
    """The server's host:port."""
    return args.url or _DEFAULT_URLS[args.protocol]


def read_connection_options(args: argparse.Namespace) -> ConnectionOptions:
    """The options that the arguments ask for. ValueError for bad ones."""
    return ConnectionOptions(
        root_certificates=args.root_certificates,
        client_certificate=args.client_certificate,
        client_key=args.client_key,
        headers=dict(_header(text) for text in args.header),
        connect_retry_s=args.connect_retry,
    )


def seconds(text: str) -> float:
    """A positive number of seconds. ArgumentTypeError says what is accepted."""
    return number(text, 0.001, 86_400)


def number(text: str, least: float, most: float) -> float:
    """A number in a range. ArgumentTypeError says what is accepted."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
    return value


def _seconds_or_none(text: str) -> float:
    return number(text, 0, 86_400)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ValueError(f"--header: expected NAME:VALUE, got {name!r} without a colon")
    return name.strip(), value.strip()
