"""Finds out what answers at an address where the expected protocol has failed."""

import contextlib
import socket
import ssl
import time
from typing import Literal

from penstock_client import limits
from penstock_client.connection import Endpoint

_SETTINGS_FRAME = 4
"""The type of the frame that an HTTP/2 server, such as gRPC's, sends first (RFC 9113, section 3.4)."""
_GRPC_PORT, _HTTP_PORT = "gRPC port (8001 by default)", "HTTP port (8000 by default)"

NOT_A_SERVER = {
    "grpc": f"this is no Penstock server, but perhaps its gateway; use the server's {_GRPC_PORT}",
    "http": f"this is no Penstock server, but perhaps its gateway; use the server's {_HTTP_PORT}",
}
"""By protocol: the server that answers does not know KServe v2, which a Penstock server speaks."""

_Found = Literal["grpc", "http", "metrics", "tls"]


def explain(endpoint: Endpoint, reason: str) -> str:
    """Why the endpoint failed: what answers there, if that is something else than expected; otherwise `reason`.

    Takes at most two seconds, and less where the endpoint's timeout is short.
    """
    try:
        found = _Probe(endpoint).find()
    except (ConnectionRefusedError, socket.gaierror) as error:
        return (error.strerror or str(error)).lower()
    except OSError:
        return reason
    own_port = _GRPC_PORT if endpoint.is_grpc else _HTTP_PORT
    if found == "metrics":
        return f"this is a server's metrics port; use its {own_port}"
    if found == "tls":
        return reason if endpoint.is_secure else f"this port requires TLS; use protocol {endpoint.protocol + 's'!r}"
    if found is None or found == endpoint.protocol:
        return reason
    speaks = f"this port speaks {'gRPC' if found == 'grpc' else 'HTTP'}" + " without TLS" * endpoint.is_secure
    if (found == "grpc") == endpoint.is_grpc:
        return f"{speaks}; use protocol {found!r}"
    return f"{speaks}; use protocol {found!r}, or the server's {own_port}"


class _Probe:
    """Connections to one address, within a common time limit."""

    def __init__(self, endpoint: Endpoint):
        host, _, port = endpoint.url.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._deadline_s = time.monotonic() + min(limits.OFFER_S, endpoint.timeout_s / 4)

    def find(self) -> _Found | None:
        """The protocol that answers; None if it is unknown. Raises OSError."""
        reply = self._get("/metrics")
        if reply[3:4] == bytes([_SETTINGS_FRAME]):
            return "grpc"
        if not reply.startswith(b"HTTP/1.") or _status(reply) == 400:  # HTTP servers with TLS may answer 400
            return "tls" if self._speaks_tls() else None
        if b"nv_inference" in reply:
            return "metrics"
        return "http" if _status(self._get("/v2/health/live")) == 200 else None

    def _get(self, path: str) -> bytes:
        """The beginning of the reply to a GET over HTTP/1.1; empty where the connection is closed instead."""
        with self._connect() as connection, contextlib.suppress(ConnectionError):
            request = f"GET {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode("ascii", "replace"))
            reply = b""
            while len(reply) < 4096 and (data := connection.recv(4096)):
                reply += data
                if reply[3:4] == bytes([_SETTINGS_FRAME]):
                    break
            return reply
        return b""

    def _speaks_tls(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            with self._connect() as connection, context.wrap_socket(connection):
                return True
        except ConnectionRefusedError:
            raise
        except OSError:
            return False

    def _connect(self) -> socket.socket:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return socket.create_connection(self._address, left_s)


def _status(reply: bytes) -> int | None:
    """The status of a reply of HTTP/1."""
    status = reply[9:12]
    return int(status) if status.isdigit() else None
