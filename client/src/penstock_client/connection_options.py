"""How a client reaches its server: certificates, headers, keepalive, retries. Checked when made; opens nothing."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEADER_NAME = re.compile(r"[0-9a-z_.\-]+")
_OWN_HEADERS = {
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "inference-header-content-length",
    "te",
    "transfer-encoding",
    "triton_grpc_error",  # a request after a refused one would then end tritonserver 2.51 with a segmentation fault
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of a client's connections. Raises ValueError for a bad value; files are read when the client is made.

    A connection that cannot be set up is tried again, with growing pauses, for `connect_retry_s`; only as long as
    none of the stream's audio can have reached the server. Audio that may have been heard is never sent again: after
    that a lost connection is the stream's failure, and what to do about it is the user's to say.
    """

    root_certificates: str | Path | None = None
    """PEM file of the authorities to trust, in place of those that the system or gRPC comes with."""
    client_certificate: str | Path | None = None
    """PEM file of the certificate that shows the server who we are; goes with `client_key`."""
    client_key: str | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each gRPC call or HTTP request, for example {"authorization": "Bearer ..."}; names are lower-cased."""
    keepalive_s: float = 310.0
    """gRPC only: how long a connection with open streams may be quiet before it is probed; 0 for never.

    A probe that is not answered for 10 s ends the connection. Triton as it comes closes a quiet connection, with all
    its streams, that is probed more often than every 300 s (`--grpc-http2-min-recv-ping-interval-without-data`).
    Audio that stays unanswered is noticed sooner, by the client's `timeout_s`.
    """
    connect_retry_s: float = 1.0
    """For how long a refused connection is tried again; 0 for not at all. The client's `timeout_s` ends it too."""

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            given, missing = ("client_certificate", "client_key")[:: 1 if self.client_key is None else -1]
            raise ValueError(f"{given} is given without {missing}, expected both or neither")
        for name in ("keepalive_s", "connect_retry_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, expected seconds from 0")
        headers = {str(name).lower(): value for name, value in self.headers.items()}
        for name, value in headers.items():
            _check_header(name, value)
        object.__setattr__(self, "headers", headers)

    @property
    def has_certificates(self) -> bool:
        """True where an option makes sense with TLS only."""
        return self.root_certificates is not None or self.client_certificate is not None


def retry_pauses_s(retry_s: float) -> Iterator[float]:
    """The pauses between attempts to connect: doubling from 50 ms up to 1 s, `retry_s` in all."""
    pause_s, left_s = 0.05, retry_s
    while left_s > 1e-3:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = min(2 * pause_s, 1.0)


def _check_header(name: str, value: object) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header name is {name!r}, expected letters, digits, '-', '_' and '.'")
    if name in _OWN_HEADERS or name.startswith("grpc-") or name.endswith("-bin"):
        raise ValueError(f"header {name!r} is the protocol's own and cannot be set")
    if not isinstance(value, str) or not all(" " <= character <= "~" for character in value):
        raise ValueError(f"value of header {name!r} is not a line of printable ASCII characters")
