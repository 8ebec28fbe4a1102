"""The limits of the gateway, in one place, and that of the time to write to a client."""

import asyncio
import resource
from collections.abc import Awaitable

from penstock_gateway.errors import ErrorCode, GatewayError

MAX_UNANSWERED_S = 2.0
"""Audio of a stream that the server has not answered; `push` waits above it."""
MAX_CHANNELS = 8
"""Channels of a recording, or of samples without a header."""
MAX_FRAME_BYTES = (20 << 20) + (64 << 10)
"""One WebSocket message: OpenAI's 15 MiB of audio in base64, and its fields."""
LARGE_FRAME_BYTES = 1 << 20
"""A larger message counts in `MAX_UNARY_BYTES`, three times its largest size: as it arrives, as text and as audio."""
MAX_HEAD_BYTES, MAX_HEAD_FIELDS, MAX_HEAD_S = 64 << 10, 100, 10.0
"""The header of an HTTP request with its line, and the time until it is complete."""
MAX_CONNECTIONS, MAX_UNKNOWN_CONNECTIONS = 5_000, 500
"""Open connections of each port of a process; of one address, at the HTTP port, those that have shown no key."""
MESSAGES_PER_S, MAX_MESSAGE_BURST = 200.0, 2_000.0
"""Messages and pings of one WebSocket; above it the gateway stops reading."""
MAX_ERRORS_IN_A_ROW = 50
"""Wrong messages of one WebSocket; then it is closed."""
MESSAGES_PER_TURN = 32
"""Messages of one WebSocket before other connections have their turn."""
MAX_MESSAGE_BYTES = 4 << 20
"""One message of a gRPC stream, as gRPC's own default."""
MAX_RECOGNIZE_BYTES = 64 << 20
"""One gRPC message with a whole recording (Recognize), or less by `--max-upload-mb`: it is in memory.

gRPC takes this much of a message of any call before the gateway sees it.
"""
MAX_UNARY_BYTES = 4 * MAX_RECOGNIZE_BYTES
"""Unary messages at the same time in a process, half of them of one key; others wait."""
MAX_WAIT_S = 30.0
"""For room for a message or a recording; then STREAMS_EXHAUSTED."""
MAX_FIELDS_BYTES = 1 << 20
"""The fields beside a recording, in a form or in a message."""
MAX_RECORDINGS_BYTES = 500_000_000
"""Uploads and compressed audio of gRPC streams that a process keeps, and half of them of one key; uploads wait.

Two uploads of the largest size, if that is more.
"""
MAX_DECODER_WAIT_S = 14.0
"""For a process that decodes a recording: before its reply begins with a keep-alive, and so with a status."""
KEEP_ALIVE_S = 15.0
"""Between two bytes of a reply that takes long. Proxies end one that sends nothing for 60 s."""
MAX_SILENT_S = 60.0
"""Until the first message of a call, and between two parts of an upload (STREAM_IDLE)."""
PING_S = 15.0
"""Between two pings of the gateway to a client that sends nothing: one that has vanished holds a stream of its key."""
MAX_IDLE_S = 3600.0
"""A live call or socket without any message for longer is closed (STREAM_IDLE), as OpenAI's."""
MAX_FINISH_S = 10.0
"""For the last text of a stream that a limit ends; then it ends without."""
MAX_UPLOAD_S = 600.0
"""Until the body of a request is complete."""
MAX_AGE_S = 4 * 3600.0
"""A stream that is older is closed (STREAM_TOO_OLD)."""
MAX_UNREAD_S = 10.0
"""A client that does not read its results for longer is closed (RESULTS_UNREAD)."""
REJECTIONS_PER_S = 20
"""Lines of the log for requests that end with an error; further ones are counted."""
RETRY_AFTER_S = 2.0
"""Seconds until a client is to try again after STREAMS_EXHAUSTED or NO_REPLICA."""


def max_connections() -> int:
    """Open connections of a port: all descriptors are for both ports, uploads and decoders."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class WriteLimit:
    """Limits the time that each write to one client takes. Cheaper than `asyncio.wait_for`, which may make a task."""

    def __init__(self, limit_s: float = MAX_UNREAD_S):
        self._limit_s = limit_s
        self._is_expired = False

    async def write(self, writing: Awaitable[object]) -> None:
        """Awaits a write of this task. GatewayError RESULTS_UNREAD where it takes too long; it is then cancelled."""
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire, task)
        try:
            await writing
        except asyncio.CancelledError:
            if not self._is_expired:
                raise
            message = f"the client did not read its results for {self._limit_s:g} s"
            raise GatewayError(ErrorCode.RESULTS_UNREAD, message) from None
        finally:
            timer.cancel()

    def _expire(self, task: "asyncio.Task[object]") -> None:
        self._is_expired = True
        task.cancel()
