"""The options of the gateway: the fields of `Config` are their only declaration. Flags and variables follow from it."""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

LOOPBACK = "127.0.0.1"
_MAX_PORT = 65_535
MIN_SILENCE_MS, MAX_SILENCE_MS = 200, 10_000
"""Of the silence that ends a segment; the server has the same limits."""


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Servers that serve the same model with the same context."""

    name: str
    """What clients write as the model; "" for the name that the servers give."""
    addresses: tuple[str, ...]
    """host:port of each server's gRPC port."""


def parse_replicas(text: str) -> tuple[ReplicaGroup, ...]:
    """Parses `HOST:PORT,...` or `NAME=HOST:PORT,...;NAME=...`. ValueError names a wrong part."""
    groups = []
    for part in text.split(";"):
        name, _, listed = part.strip().rpartition("=")
        addresses = tuple(address.strip() for address in listed.split(",") if address.strip())
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
                raise ValueError(f"{address!r} is not HOST:PORT")
        if not addresses:
            raise ValueError("no HOST:PORT")
        groups.append(ReplicaGroup(name.strip(), addresses))
    names = [group.name for group in groups]
    if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        raise ValueError("more than one group, and not each has a name of its own")
    return tuple(groups)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"accepted: integers from {low} to {high}")
        return value

    return convert


def _real(low: float, high: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"accepted: numbers from {low:g} to {high:g}")
        return value

    return convert


def _choice(*names: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise ValueError(f"accepted: {', '.join(names)}")
        return text

    return convert


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _silence(text: str) -> int:
    return 0 if text == "0" else _whole(MIN_SILENCE_MS, MAX_SILENCE_MS)(text)


def _option(convert: Any, default: Any, metavar: str | None, help_text: str) -> Any:
    return field(default=default, metadata={"convert": convert, "metavar": metavar, "help": help_text})


_port = _whole(0, _MAX_PORT)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What `penstock-gateway` was told. ValueError from `from_flags` names a wrong flag."""

    replicas: tuple[ReplicaGroup, ...] = _option(
        parse_replicas, parse_replicas("127.0.0.1:8001"), "HOST:PORT,...",
        "gRPC ports of the servers; NAME=HOST:PORT,...;NAME=... for more than one model",
    )  # fmt: skip
    http_port: int = _option(_port, 8080, "PORT", "port of OpenAI's HTTP and Realtime protocols; 0 for any free port")
    grpc_port: int = _option(_port, 50051, "PORT", "port of Riva's gRPC protocol; 0 for any free port")
    metrics_port: int = _option(_port, 8081, "PORT", "port of the metrics, which need no key; 0 for any free port")
    host: str = _option(str, LOOPBACK, "ADDRESS", "address to listen on; other than loopback only with --keys")
    keys: str | None = _option(str, None, "FILE", "API keys, a line NAME SHA256 MAX_STREAMS for each")
    secret: str | None = _option(
        str, None, "FILE", "signs client secrets, at least 32 bytes; several gateways share it. Default: random"
    )
    origins: tuple[str, ...] = _option(
        _names, (), "ORIGIN,...", "origins of web pages that may use the gateway, beside its own; * for all"
    )
    tls_cert: str | None = _option(str, None, "FILE", "PEM file with the certificate chain; needs --tls-key")
    tls_key: str | None = _option(str, None, "FILE", "PEM file with the certificate's private key")
    language: str = _option(str, "en-US", "NAME", "language of a model that has no choice of languages")
    endpoint_silence_ms: int = _option(
        _silence, 800, "MS",
        f"silence that ends a segment where a request names none; {MIN_SILENCE_MS} to {MAX_SILENCE_MS}, 0: none",
    )  # fmt: skip
    endpoint_state: Literal["reset", "carry"] | None = _option(
        _choice("reset", "carry"), None, "NAME",
        "decoder at the end of a segment: reset or carry. Default: the server's",
    )  # fmt: skip
    riva_boost_scale: float = _option(
        _real(0, 1), 0.02, "SCALE", "Riva: nats per unit of a phrase's boost, limited to 2 nats"
    )
    strict: bool = _option(bool, False, None, "reject request fields that have no effect here")
    captions: bool = _option(bool, False, None, "serve the live captions page /captions")
    max_file_minutes: float = _option(_real(1, 1440), 240, "MINUTES", "longest uploaded recording")
    workers: int = _option(_whole(1, 64), 1, "N", "processes; each has an event loop and shares the ports")
    timeout_s: float = _option(_real(0.1, 60), 2.5, "S", "time without a reply after which a stream is lost")
    drain_seconds: int = _option(_whole(0, 3600), 8, "S", "time for live streams to end after SIGTERM")
    log_format: str = _option(_choice("text", "json"), "text", "NAME", "format of the log; text or json")

    def check(self) -> "Config":
        """Itself; ValueError for options that contradict each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other")
        if self.keys is None and self.host not in (LOOPBACK, "::1", "localhost"):
            raise ValueError(f"--host {self.host} needs --keys: without keys the gateway listens on loopback only")
        return self

    @staticmethod
    def add_flags(parser: argparse.ArgumentParser) -> None:
        """Adds a flag for each field."""
        for option in fields(Config):
            about = option.metadata["help"]
            if option.metadata["metavar"] is None:
                parser.add_argument(_flag(option.name), action=argparse.BooleanOptionalAction, help=about)
            else:
                default = "" if option.default in (None, ()) or option.name == "replicas" else f" ({option.default})"
                parser.add_argument(_flag(option.name), metavar=option.metadata["metavar"], help=about + default)

    @classmethod
    def from_flags(cls, args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> "Config":
        """The values of flags, else of variables (PENSTOCK_GATEWAY_HTTP_PORT), else the defaults."""
        values: dict[str, Any] = {}
        for option in fields(cls):
            given, source = getattr(args, option.name), _flag(option.name)
            if given is None:
                source = variable(option.name)
                given = environment.get(source) or None
            if given is not None:
                values[option.name] = _convert(option.metadata["convert"], given, source)
        return cls(**values).check()


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"PENSTOCK_GATEWAY_{name.upper()}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _convert(convert: Any, given: Any, source: str) -> Any:
    if convert is bool:
        switches = {"1": True, "true": True, "0": False, "false": False}
        if (value := switches.get(str(given).lower())) is None:
            raise ValueError(f"{source} is {given!r}; accepted: {', '.join(switches)}")
        return value
    try:
        return convert(given)
    except ValueError as error:
        raise ValueError(f"{source} is {given!r}: {error}") from None
