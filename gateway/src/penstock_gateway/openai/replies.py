"""A recording on its way through a live stream, and its reply, which is kept alive, or proxies would end it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock_common.audio.pcm import Remark, header
from penstock_common.audio.tracks import EACH, Samples, channel_names
from penstock_gateway import limits
from penstock_gateway.audio.container import DecodedRecording
from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.api import CLIENT_GONE, while_connected
from penstock_gateway.openai.formats import (
    JSON,
    KEEP_ALIVE,
    TranscriptEvents,
    Transcription,
    error_document,
    error_event,
    media_type,
    render,
)
from penstock_gateway.openai.request import TranscriptionRequest
from penstock_gateway.security.budget import WriteLimit
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.channels import CallStreams
from penstock_gateway.stream.events import Event, Final

PROTOCOL = "openai"
WARNING_HEADER = "penstock-warning"


class TranscriptionJob:
    """Decodes a recording and sends it as fast as the server takes it. Close it."""

    def __init__(
        self, streams: CallStreams, recording: DecodedRecording, blocks: AsyncGenerator[Samples, None], first: Samples
    ):
        """`blocks`: those after the first one."""
        self._streams, self._recording, self._blocks = streams, recording, blocks
        self.channels: Sequence[str] = channel_names(len(first)) if first.ndim > 1 else ()
        """Names of the channels that are recognized each by itself."""
        self._samples = 0
        self._feeding = asyncio.create_task(self._feed(first))

    @classmethod
    async def start(
        cls, gateway: Gateway, wanted: TranscriptionRequest, recording: BinaryIO, key: ApiKey
    ) -> "TranscriptionJob":
        """Opens the streams for a file that begins with audio, and closes the file. GatewayError, also of the file."""
        max_seconds, channel = gateway.config.max_file_minutes * 60, wanted.form.channels
        decoded = DecodedRecording(recording, key.name, wanted.group.sample_rate_hz, max_seconds, channel)
        blocks = decoded.blocks()
        try:
            gateway.streams.check_room(key)  # decoding takes longer than a rejection should
            first = await anext(blocks)
            channels = len(first) if channel == EACH else 0
            streams = await CallStreams.open(gateway.streams, wanted.options, key, PROTOCOL, channels)
        except BaseException:
            await blocks.aclose()
            raise
        finally:
            recording.close()
        streams.start_at(decoded.start_s)
        return cls(streams, decoded, blocks, first)

    @property
    def duration_s(self) -> float:
        """The audio sent so far."""
        return self._samples / self._recording.rate_hz

    @property
    def end_s(self) -> float:
        """The end of the audio sent so far, in the file."""
        return self._recording.start_s + self.duration_s

    @property
    def remarks(self) -> Sequence[Remark]:
        """On the file and its text; known after the events."""
        return self._streams.note(self._recording.remarks)

    async def events(self) -> AsyncIterator[Event]:
        """The events of a mix. GatewayError, also of the file."""
        async for event in self._streams.streams[0].events():
            yield event
        await self._feeding

    async def finals(self) -> list[Final]:
        """All segments in the order of their times. GatewayError, also of the file."""
        finals = await self._streams.finals()
        await self._feeding
        return finals

    async def close(self) -> None:
        """Ends the stream and the decoding, if they have not ended."""
        self._feeding.cancel()
        await self._streams.cancel()  # first: the client may vanish during the rest, which then ends
        with suppress(asyncio.CancelledError, GatewayError):
            await self._feeding
        await self._blocks.aclose()

    async def _feed(self, first: Samples) -> None:
        block: Samples | None = first
        try:
            while block is not None:
                self._samples += block.shape[-1]
                await self._streams.push(block)
                block = await anext(self._blocks, None)
            await self._streams.finish()
        except GatewayError:
            await self._streams.cancel()  # no more events, if it was the file that failed
            raise


Start = Callable[[], Coroutine[Any, Any, TranscriptionJob]]


async def reply_to(
    request: Request, gateway: Gateway, wanted: TranscriptionRequest, start: Start, headers: dict[str, str]
) -> Response:
    """The reply with the transcription of the job that `start` starts. Stops where the client disconnects.

    GatewayError, also of the job, until the reply begins: when its first part is there, or after `KEEP_ALIVE_S`.
    """
    kind = media_type(wanted)
    if wanted.form.stream:
        reply = _LongReply(gateway, _events(wanted, start), (KEEP_ALIVE, error_event), headers, kind)
    else:  # whitespace before text, srt or vtt would change them
        fillers = b" " if kind == JSON else None, error_document
        reply = _LongReply(gateway, _document(wanted, start, headers), fillers, headers, kind)
    has_begun = False
    try:
        has_begun = await while_connected(request, reply.begin()) is not None
    finally:
        if not has_begun:
            await reply.close()
    if not has_begun:
        return Response(status_code=CLIENT_GONE)
    if wanted.form.stream or reply.first is None:
        return reply
    await reply.close()
    return Response(reply.first, headers=headers, media_type=kind)


async def _document(wanted: TranscriptionRequest, start: Start, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """The whole transcription, as one part. Its remarks are added to the headers, too."""
    job = await start()
    try:
        finals = await job.finals()
    finally:
        await job.close()  # first: a client that has read its reply may open its next stream
    if job.remarks:
        headers[WARNING_HEADER] = header(job.remarks)
    transcription = Transcription(finals, job.duration_s, job.remarks, job.end_s, job.channels)
    yield render(transcription, wanted).encode()


async def _events(wanted: TranscriptionRequest, start: Start) -> AsyncGenerator[bytes, None]:
    """Server-sent events; before them, when the job has started, an empty part."""
    job = await start()
    try:
        yield b""
        form = wanted.form
        events = TranscriptEvents(bool(form.include), form if form.response_format == "diarized_json" else None)
        async for event in job.events():
            if (delta := events.add(event)) is not None:
                yield delta
    finally:
        await job.close()  # as above
    yield events.done(job.duration_s, job.remarks)


class _LongReply(StreamingResponse):
    """Sends the parts of a reply, and a keep-alive wherever none comes for `KEEP_ALIVE_S`. Close it.

    A client that does not read it, or disconnects, ends its parts.
    """

    def __init__(
        self,
        gateway: Gateway,
        parts: AsyncGenerator[bytes, None],
        fillers: tuple[bytes | None, Callable[[GatewayError], bytes]],
        headers: Mapping[str, str],
        media_type: str,
    ):
        """`fillers`: the keep-alive, if the format has one, and what shows an error, as the last part."""
        # Without buffers of proxies, such as nginx has.
        headers = {**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._content(), headers=headers, media_type=media_type)
        self.first: bytes | None = None
        """The first part, if it was there in time."""
        self._gateway = gateway
        self._parts = parts
        self._keep_alive, self._show_error = fillers
        self._next: asyncio.Task[bytes | None] = asyncio.create_task(self._part())

    async def begin(self) -> "_LongReply":
        """Waits for the first part, no longer than until a keep-alive is due. Raises an error of the parts."""
        if await self._is_next_in_time():
            self.first = self._next.result()
        return self

    async def close(self) -> None:
        """Ends the parts."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self._parts.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends the parts, however the response ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.close()

    async def stream_response(self, send: Send) -> None:
        """Limits the time of each write."""
        limit = WriteLimit()
        try:
            await super().stream_response(lambda message: limit.write(send(message)))
        except GatewayError as error:
            self._gateway.note_rejection(PROTOCOL, error)

    async def _content(self) -> AsyncIterator[bytes]:
        if self.first is None:
            yield self._keep_alive or b""
        try:
            while True:
                while not await self._is_next_in_time():
                    yield self._keep_alive or b""
                if (part := self._next.result()) is None:
                    return
                yield part
                self._next = asyncio.create_task(self._part())
        except GatewayError as error:
            self._gateway.note_rejection(PROTOCOL, error)
            yield self._show_error(error)

    async def _part(self) -> bytes | None:
        """The next part; None after the last one."""
        return await anext(self._parts, None)

    async def _is_next_in_time(self) -> bool:
        """Waits for the next part; False where a keep-alive is due before."""
        done, _ = await asyncio.wait((self._next,), timeout=limits.KEEP_ALIVE_S if self._keep_alive else None)
        return bool(done)
