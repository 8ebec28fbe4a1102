"""Probes a server with one empty stream through all of its models, over HTTP. Standard library only.

Triton's own readiness is not enough: it stays true after a model's process has died.
"""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import ErrorCode, split_code

_PATH = "/v2/models/asr/infer"
_MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True)
class Health:
    """Result of a probe."""

    is_healthy: bool
    reason: str
    """One line, for a good result too."""


def probe(url: str = "localhost:8000", timeout_s: float = 5.0, needs_room: bool = False) -> Health:
    """Starts and ends a stream without samples at the HTTP address `url`, within `timeout_s`.

    A server that rejects the stream because all slots are taken is healthy: its `features` model has answered, and a
    restart would only end the live streams. needs_room: it must have a slot, to be ready for a new stream.
    """
    started = time.monotonic()
    try:
        status, body = _post(url, json.dumps(_request()).encode(), timeout_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() - started >= timeout_s:
            return Health(False, f"{url}: no answer within {timeout_s:g} s")
        return Health(False, f"{url}: {_reason(error)}")
    return _judge(url, status, body, 1000 * (time.monotonic() - started), needs_room)


def answers(connection: http.client.HTTPConnection, path: str) -> bool:
    """True if GET `path` has the status 200; closes the connection."""
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def _reason(error: Exception) -> str:
    """Why a request failed. Bytes of a server that speaks no HTTP are not shown: they may control a terminal."""
    if isinstance(error, ConnectionError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
        return "the answer is not HTTP; expected the server's HTTP port"
    return _one_line(error) or type(error).__name__


def _request() -> dict[str, Any]:
    return {
        "parameters": {"sequence_id": f"health-{uuid.uuid4().hex}", "sequence_start": True, "sequence_end": True},
        "inputs": [{"name": "AUDIO", "shape": [1, 0], "datatype": "FP32", "data": []}],
        "outputs": [{"name": "TEXT"}, {"name": "IS_FINAL"}],
    }


def _post(url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
    parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
    if parts.scheme not in ("", "http") or not parts.hostname:
        raise ValueError("expected HOST:PORT or http://HOST:PORT")
    deadline_s = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 8000, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.connect()
        with _deadline(connection.sock, max(0.0, deadline_s - time.monotonic())):
            connection.request("POST", _PATH, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(_MAX_REPLY_BYTES)


@contextlib.contextmanager
def _deadline(connected: socket.socket, timeout_s: float) -> Iterator[None]:
    """Cuts the connection after `timeout_s`: the socket's own timeout restarts with every byte."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _judge(url: str, status: int, body: bytes, elapsed_ms: float, needs_room: bool) -> Health:
    try:
        reply = json.loads(body)
        if status == http.client.OK:
            is_final = {output["name"]: output["data"] for output in reply["outputs"]}["IS_FINAL"]
            if is_final == [True]:
                return Health(True, f"{url}: all models answered within {elapsed_ms:.0f} ms")
            return Health(False, f"{url}: the response to the end of a stream is not final")
        message = _one_line(reply["error"])
    except (ValueError, LookupError, TypeError):
        return Health(False, f"{url}: HTTP {status}, not a response of a Penstock server")
    if split_code(message)[0] == ErrorCode.STREAM_LIMIT.name:
        return Health(not needs_room, f"{url}: full, but alive: {message}")
    return Health(False, f"{url}: {message}")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
