"""Probes a server with one empty stream through all of its models, over HTTP.

Triton's own readiness is not enough: it stays true after a model's process has died. A container's probe runs every few
seconds, so nothing is imported here that takes time: `http.client` alone, with TLS and email, doubles the CPU time.
"""

import json
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ErrorCode, split_code
from penstock_common.errors import one_line

if TYPE_CHECKING:
    from http.client import HTTPConnection

HTTP_PORT = 8000
_URL = re.compile(r"(?:http://)?(\[[^\s\[\]]+\]|[^\s:/@\[\]]+)(?::([0-9]{1,5}))?/?", re.IGNORECASE)
_PATH = "/v2/models/asr/infer"
_MAX_REPLY_BYTES = 1 << 20
_OK = 200


class Health(NamedTuple):
    """Result of a probe."""

    is_healthy: bool
    reason: str
    """One line, for a good result too."""


def probe(url: str = f"localhost:{HTTP_PORT}", timeout_s: float = 5.0, needs_room: bool = False) -> Health:
    """Starts and ends a stream without samples at the HTTP address `url`, within `timeout_s`.

    A server that rejects the stream because all slots are taken is healthy: its `features` model has answered, and a
    restart would only end the live streams. needs_room: it must have a slot, to be ready for a new stream.
    """
    started = time.monotonic()
    try:
        status, body = _post(url, json.dumps(_request()).encode(), timeout_s)
    except (OSError, ValueError) as error:
        if time.monotonic() - started >= timeout_s:
            return Health(False, f"{url}: no answer within {timeout_s:g} s")
        return Health(False, f"{url}: {_reason(error)}")
    return _judge(url, status, body, 1000 * (time.monotonic() - started), needs_room)


def answers(connection: "HTTPConnection", path: str) -> bool:
    """True if GET `path` has the status 200; closes the connection."""
    from http.client import HTTPException

    try:
        connection.request("GET", path)
        return connection.getresponse().status == _OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    """Why a request failed."""
    if isinstance(error, ConnectionError) and error.strerror:
        return error.strerror.lower()
    return one_line(error) or type(error).__name__


def _request() -> dict[str, Any]:
    return {
        "parameters": {"sequence_id": f"health-{os.urandom(16).hex()}", "sequence_start": True, "sequence_end": True},
        "inputs": [{"name": "AUDIO", "shape": [1, 0], "datatype": "FP32", "data": []}],
        "outputs": [{"name": "TEXT"}, {"name": "IS_FINAL"}],
    }


def _post(url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of the answer. Bytes that are not HTTP are not shown: they may control a terminal."""
    match = _URL.fullmatch(url)
    if not match or int(port := match[2] or HTTP_PORT) >= 1 << 16:
        raise ValueError("expected HOST:PORT or http://HOST:PORT")
    host = match[1].strip("[]").encode("ascii" if url.isascii() else "idna")  # as text, it imports the tables of IDNA
    deadline_s = time.monotonic() + timeout_s
    head = f"POST {_PATH} HTTP/1.0\r\nHost: {match[1]}\r\nContent-Type: application/json\r\n"
    reply = b""
    with socket.create_connection((host, int(port)), timeout_s) as connection:  # type: ignore[arg-type]
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("ascii", "replace") + body)
        while len(reply) < _MAX_REPLY_BYTES:
            connection.settimeout(max(1e-3, deadline_s - time.monotonic()))
            if not (data := connection.recv(_MAX_REPLY_BYTES)):
                break
            reply += data
    start, _, content = reply.partition(b"\r\n\r\n")
    if not start.startswith(b"HTTP/1.") or not start[9:12].isdigit():
        raise ValueError("the answer is not HTTP; expected the server's HTTP port")
    return int(start[9:12]), content


def _judge(url: str, status: int, body: bytes, elapsed_ms: float, needs_room: bool) -> Health:
    try:
        reply = json.loads(body)
        if status == _OK:
            is_final = {output["name"]: output["data"] for output in reply["outputs"]}["IS_FINAL"]
            if is_final == [True]:
                return Health(True, f"{url}: all models answered within {elapsed_ms:.0f} ms")
            return Health(False, f"{url}: the response to the end of a stream is not final")
        message = one_line(reply["error"])
    except (ValueError, LookupError, TypeError):
        return Health(False, f"{url}: HTTP {status}, not a response of a Penstock server")
    if split_code(message)[0] == ErrorCode.STREAM_LIMIT.name:
        return Health(not needs_room, f"{url}: full, but alive: {message}")
    return Health(False, f"{url}: {message}")
