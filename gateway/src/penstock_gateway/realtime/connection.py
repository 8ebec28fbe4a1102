"""One WebSocket connection: carries messages between the socket, the protocol and the stream, within the limits."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock_gateway import limits
from penstock_gateway.audio.pcm import PcmDecoder
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.api import CONNECTION
from penstock_gateway.realtime.dialect import Action, AppendAudio, Configure, EndSegment, Finish, ServerEvent
from penstock_gateway.realtime.openai_dialect import COMMIT_EMPTY
from penstock_gateway.realtime.protocol import RealtimeProtocol, encode
from penstock_gateway.security.budget import OpenConnection
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.replica_stream import ReplicaStream

_T = TypeVar("_T")
_log = logging.getLogger("penstock_gateway.realtime")
PROTOCOL = "realtime"
_PIECE_BYTES = 256 << 10
_MAX_REASON_BYTES = 120


class _StreamLostError(Exception):
    """The stream failed; the task that reads its events reports why."""


class RealtimeConnection:
    """Runs until the client leaves, the stream is lost or a limit is reached."""

    def __init__(self, socket: WebSocket, protocol: RealtimeProtocol, gateway: Gateway, key: ApiKey):
        self._socket, self._protocol, self._gateway, self._key = socket, protocol, gateway, key
        self._configured: Configure | None = None
        self._decoder: PcmDecoder | None = None
        self._stream: ReplicaStream | None = None
        self._results: asyncio.Task[None] | None = None
        self._over: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()
        self._opened_s = self._last_message_s = time.monotonic()
        self._known: OpenConnection | None = socket.scope.get("state", {}).get(CONNECTION)
        self._sending_since_s: float | None = None
        self._remarks = 0
        """The number of remarks of the stream that the client has."""
        self._has_reported = False
        """The client has the error that ends the connection."""

    async def run(self) -> None:
        """Serves the connection, closes the socket and frees the stream."""
        reading, watching = self._start(self._read()), self._start(self._watch())
        try:
            error = await self._over
            reading.cancel()
            if error is not None and error.code is not GatewayCode.RESULTS_UNREAD:
                await self._report_rest(error)
        finally:
            self._gateway.streams.sessions.discard(self)
            for task in (reading, watching, self._results):
                if task is not None:
                    task.cancel()
            if self._stream is not None:
                await self._stream.cancel()
        if error is not None:
            self._gateway.note_rejection(PROTOCOL, error)
            if error.code is not GatewayCode.RESULTS_UNREAD:
                await self._close(error)

    async def _report_rest(self, error: GatewayError) -> None:
        """The text of what was pushed, then the error, unless it is the stream's own or passes."""
        if self._has_reported:
            return
        with contextlib.suppress(asyncio.TimeoutError, _StreamLostError, WebSocketDisconnect, OSError):
            await asyncio.wait_for(self._finish(), limits.UNRESPONSIVE_S)
        if error.code.is_passing:
            return
        with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect, OSError):
            await asyncio.wait_for(self._send(self._protocol.rejected(error)), limits.UNRESPONSIVE_S)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of the connection: its failure ends the connection."""
        try:
            await work
        except GatewayError as error:
            self._end(error)
        except _StreamLostError:
            pass
        except (WebSocketDisconnect, OSError):
            self._end(None)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the stream is freed
            _log.exception("a Realtime connection failed")
            self._end(GatewayError(GatewayCode.INTERNAL, "the gateway failed"))

    def _end(self, error: GatewayError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)

    async def _read(self) -> None:
        """Messages of the client, one after another; a stream that cannot take more audio stops the reading."""
        for action in self._protocol.dialect.opened():
            await self._apply(action)
        count = errors = 0
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            count += 1
            if count % limits.MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)
            self._last_message_s = time.monotonic()
            if (error := message.get("error")) is not None:
                raise error
            actions = self._protocol.receive(message["text"] if "text" in message else message["bytes"])
            first = actions[0] if len(actions) == 1 else None
            is_wrong = type(first) is dict and first["type"] == "error" and first["error"]["code"] != COMMIT_EMPTY
            errors = errors + 1 if is_wrong else 0
            for action in actions:
                await self._apply(action)
            if errors >= limits.MAX_ERRORS_IN_A_ROW:
                raise GatewayError(GatewayCode.FIELD_INVALID, f"{errors} messages in a row were wrong")
            self._last_message_s = time.monotonic()  # waiting for the server is not silence
        self._end(None)

    async def _apply(self, action: Action) -> None:
        if isinstance(action, AppendAudio):
            await self._push(action.data)
        elif isinstance(action, Configure):
            await self._configure(action)
        elif isinstance(action, EndSegment):
            await self._end_segment()
        elif isinstance(action, Finish):
            if not await self._finish():
                await self._answer_without_audio(is_last=True)
        else:
            await self._send(action)

    async def _configure(self, configured: Configure) -> None:
        """A stream goes on where its options may change; else it is finished, and the next audio opens another one."""
        before, self._configured = self._configured, configured
        if self._stream is not None and before is not None:
            is_same_audio = (before.audio, before.has_header) == (configured.audio, configured.has_header)
            change = self._gateway.streams.change
            if is_same_audio and await self._on_stream(change(self._stream, configured.options)) is not None:
                return
        await self._finish()

    async def _push(self, data: bytes) -> None:
        if self._stream is None and not data:
            return  # takes no slot
        if self._stream is None:
            await self._open()
        assert self._stream is not None and self._decoder is not None
        data = self._decoder.message(data)
        for start in range(0, len(data) or 1, _PIECE_BYTES):  # also without samples: the client is not idle
            await self._on_stream(self._stream.push(self._decoder.push(data[start : start + _PIECE_BYTES])))
        self._stream.note(self._decoder.remarks)
        await self._send_remarks()

    async def _open(self) -> None:
        assert self._configured is not None, "a dialect configures the stream before its audio"
        configured = self._configured
        rate_hz = self._gateway.streams.group(configured.options.model).sample_rate_hz
        self._remarks = 0
        self._decoder = PcmDecoder(configured.audio, rate_hz, configured.has_header)
        options = replace(configured.options, in_session=True)
        self._stream = await self._gateway.streams.open(options, self._key, PROTOCOL)
        self._gateway.streams.sessions.add(self)
        self._results = self._start(self._read_results(self._stream))

    async def _end_segment(self) -> None:
        if self._stream is None:
            return await self._answer_without_audio(is_last=False)
        assert self._decoder is not None
        if len(rest := self._decoder.flush()):
            await self._on_stream(self._stream.push(rest))
        await self._on_stream(self._stream.end_segment())

    async def _finish(self) -> bool:
        """Finishes the stream and waits for its last result. False if there is none."""
        stream, results = self._stream, self._results
        if stream is None or results is None:
            return False
        assert self._decoder is not None
        if len(rest := self._decoder.flush()):
            await self._on_stream(stream.push(rest))
        await self._on_stream(stream.finish())
        await results
        await self._send_remarks()
        self._stream = self._results = self._decoder = None
        return True

    async def _on_stream(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except GatewayError:
            raise _StreamLostError from None

    async def _answer_without_audio(self, is_last: bool) -> None:
        """The end of a segment before any audio."""
        empty = Final(0, "", (), (), 0.0, 0.0, is_last=is_last, forced=not is_last)
        for event in self._protocol.dialect.result(empty):
            await self._send(event)

    async def _read_results(self, stream: ReplicaStream) -> None:
        """Results of one stream, until its last one."""
        try:
            async for event in stream.events():
                for server_event in self._protocol.dialect.result(event):
                    await self._send(server_event)
        except GatewayError as error:
            self._has_reported = True
            for server_event in self._protocol.dialect.failed(error):
                await self._send(server_event)
            raise

    async def _send_remarks(self) -> None:
        assert self._stream is not None
        remarks = self._stream.remarks
        new, self._remarks = remarks[self._remarks :], len(remarks)
        for remark in new:
            await self._send(self._protocol.remark(remark))

    async def _send(self, event: ServerEvent) -> None:
        self._sending_since_s = time.monotonic()
        try:
            await self._socket.send_text(encode(event))
        except RuntimeError as error:  # another task has already seen that the client left
            raise WebSocketDisconnect(1006, str(error)) from None
        self._sending_since_s = None

    async def _watch(self) -> None:
        """The limits of time."""
        while True:
            await asyncio.sleep(limits.TICK_S)
            now_s = time.monotonic()
            if self._sending_since_s is not None and now_s - self._sending_since_s > limits.UNRESPONSIVE_S:
                raise GatewayError(GatewayCode.RESULTS_UNREAD, "the client did not read its results")
            last_message_s = max(self._last_message_s, self._known.last_ping_s if self._known is not None else 0.0)
            if self._stream is not None:
                self._stream.activity.heard_s = last_message_s
            if now_s - last_message_s > limits.MAX_IDLE_S:
                raise GatewayError(GatewayCode.STREAM_IDLE, f"nothing arrived for {limits.MAX_IDLE_S:.0f} s")
            if now_s - self._opened_s > limits.MAX_AGE_S:
                raise GatewayError(GatewayCode.STREAM_TOO_OLD, f"the connection is older than {limits.MAX_AGE_S:.0f} s")

    async def _close(self, error: GatewayError) -> None:
        reason = str(error).encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        gone = WebSocketDisconnect, OSError, RuntimeError, asyncio.TimeoutError
        with contextlib.suppress(*gone):  # the client was faster, or does not read
            await asyncio.wait_for(self._socket.close(error.code.status.websocket, reason), limits.UNRESPONSIVE_S)
