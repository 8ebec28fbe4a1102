"""Where a server is and in which protocol it is spoken to. Checked when made; opens nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from penstock_client.connection_options import ConnectionOptions
from penstock_client.protocol import MODEL_NAME

ProtocolName = Literal["grpc", "http", "grpcs", "https"]
"""The protocols of Triton; those with an s are inside TLS."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One port of a server. Raises ValueError for a bad url or protocol, or certificates where there is no TLS."""

    url: str
    """host:port"""
    protocol: ProtocolName = "grpc"
    model: str = MODEL_NAME
    timeout_s: float = 10.0
    """How long the server may leave audio unanswered, and a connection may take."""
    options: ConnectionOptions = field(default_factory=ConnectionOptions)

    def __post_init__(self) -> None:
        if self.protocol not in get_args(ProtocolName):
            raise ValueError(f"protocol is {self.protocol!r}, expected 'grpc', 'http', 'grpcs' or 'https'")
        host, _, port = self.url.rpartition(":")
        if not host or "/" in self.url or not port.isascii() or not port.isdigit():
            raise ValueError(f"url is {self.url!r}, expected host:port, for example localhost:8001")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s!r}, expected a positive number")
        if self.options.has_certificates and not self.is_secure:
            raise ValueError(
                f"certificates are given, but protocol {self.protocol!r} is without TLS: they go with "
                "'grpcs' and 'https'"
            )

    @property
    def is_grpc(self) -> bool:
        """True for gRPC, False for HTTP."""
        return self.protocol in ("grpc", "grpcs")

    @property
    def is_secure(self) -> bool:
        """True with TLS."""
        return self.protocol in ("grpcs", "https")


def read_pem(path: str | Path | None) -> bytes | None:
    """A file of certificates or of a key; None for None. ValueError names one that cannot be read."""
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if b"-----BEGIN " not in content:
        raise ValueError(f"{path}: not a PEM file")
    return content
