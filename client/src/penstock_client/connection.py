"""Address of a server and how to reach it: protocol, certificates, headers, keepalive, retries. Opens nothing."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from penstock_client import limits
from penstock_client.protocol import MODEL_NAME

ProtocolName = Literal["grpc", "http", "grpcs", "https"]
"""The protocols of Triton; grpcs and https use TLS."""

_HEADER_NAME = re.compile(r"[0-9a-z_.\-]+")
_MAX_PORT = 65_535
_OWN_HEADERS = {
    "connection", "content-encoding", "content-length", "content-type", "host", "inference-header-content-length",
    "te", "transfer-encoding", "triton_grpc_error",
}  # fmt: skip
"""With `triton_grpc_error`, the request after a rejected one crashes tritonserver 2.51."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """A client's connection options. Raises ValueError for an invalid value; files are read when the client is made."""

    root_certificates: str | Path | None = None
    """PEM file of trusted certificate authorities (default: the system's, or those built into gRPC)."""
    client_certificate: str | Path | None = None
    """PEM file of the client's certificate for mutual TLS; requires `client_key`."""
    client_key: str | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each gRPC call or HTTP request, such as {"authorization": "Bearer ..."}; names are lower-cased."""
    keepalive_s: float = 310.0
    """gRPC only: idle time after which a connection with open streams is probed; 0: never.

    Triton closes one that is probed more often than every 300 s (`--grpc-http2-min-recv-ping-interval-without-data`).
    """
    connect_retry_s: float = 1.0
    """Seconds during which failed connection attempts are repeated, before any audio is sent; 0: never."""
    wait_for_slot_s: float = 0.0
    """Seconds during which a stream waits while the server is full or stopping. Not for `BatchedClient`."""
    reconnect_s: float = 0.0
    """Seconds during which a stream that has had results moves to its server again, so that nothing is missing.

    Moves are logged ("penstock_client"). Not for `BatchedClient`.
    """

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            given, missing = ("client_certificate", "client_key")[:: 1 if self.client_key is None else -1]
            raise ValueError(f"{given} is given without {missing}, expected both or neither")
        for name in ("keepalive_s", "connect_retry_s", "wait_for_slot_s", "reconnect_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, expected seconds from 0")
        headers = {str(name).lower(): value for name, value in self.headers.items()}
        for name, value in headers.items():
            _check_header(name, value)
        object.__setattr__(self, "headers", headers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One port of a server. Raises ValueError for an invalid url or protocol, and for certificates without TLS."""

    url: str
    """host:port"""
    protocol: ProtocolName = "grpc"
    timeout_s: float = limits.TIMEOUT_S
    """Maximum time to connect, and to wait for the reply to a request."""
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    model: str = MODEL_NAME

    def __post_init__(self) -> None:
        if self.protocol not in get_args(ProtocolName):
            raise ValueError(f"protocol is {self.protocol!r}, expected 'grpc', 'http', 'grpcs' or 'https'")
        host, _, port = self.url.rpartition(":")
        if not host or "/" in self.url or not port.isascii() or not port.isdigit():
            raise ValueError(f"url is {self.url!r}, expected host:port, {_example(self.url)}")
        if not 1 <= int(port) <= _MAX_PORT:
            raise ValueError(f"url is {self.url!r}: the port is {int(port)}, expected 1 to {_MAX_PORT}")
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s!r}, expected a positive number")
        options = self.options
        if (options.root_certificates or options.client_certificate) and not self.is_secure:
            raise ValueError(
                f"certificates are given, but protocol {self.protocol!r} has no TLS: use 'grpcs' or 'https'"
            )

    @property
    def is_grpc(self) -> bool:
        """True for gRPC, False for HTTP."""
        return self.protocol in ("grpc", "grpcs")

    @property
    def is_secure(self) -> bool:
        """True with TLS."""
        return self.protocol in ("grpcs", "https")


def retry_pauses_s(retry_s: float) -> Iterator[float]:
    """The pauses between attempts to connect or to get a slot: they double, and are `retry_s` in all."""
    pause_s, left_s = limits.FIRST_PAUSE_S, retry_s
    while left_s > 1e-3:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = min(2 * pause_s, limits.LONGEST_PAUSE_S)


def read_pem(path: str | Path | None) -> bytes | None:
    """The content of a certificate or key file; None for None. Raises ValueError with the path of an unusable file."""
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if b"-----BEGIN " not in content:
        raise ValueError(f"{path}: not a PEM file")
    return content


def _example(url: str) -> str:
    """An address as it is accepted, also of one that begins with a protocol."""
    protocol, separator, address = url.partition("://")
    if separator and protocol in get_args(ProtocolName):
        return f"here {address.partition('/')[0]} with protocol {protocol!r}"
    return "for example localhost:8001"


def _check_header(name: str, value: object) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header name is {name!r}, expected letters, digits, '-', '_' and '.'")
    if name in _OWN_HEADERS or name.startswith("grpc-") or name.endswith("-bin"):
        raise ValueError(f"header {name!r} is reserved by the protocol")
    if not isinstance(value, str) or not all(" " <= character <= "~" for character in value):
        raise ValueError(f"value of header {name!r} must be one line of printable ASCII characters")
