"""One recording on its way through a live stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from penstock_client.audio.pcm import Remark
from penstock_client.audio.tracks import Samples
from penstock_gateway.audio.container import DecodedRecording
from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.openai.request import TranscriptionRequest
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.events import Event, shifted
from penstock_gateway.stream.live_stream import LiveStream

PROTOCOL = "openai"


class TranscriptionJob:
    """Decodes a recording and sends it as fast as the server takes it. Close it."""

    def __init__(
        self,
        stream: LiveStream,
        recording: DecodedRecording,
        blocks: AsyncGenerator[Samples, None],
        first: Samples,
        sample_rate_hz: int,
    ):
        self._stream = stream
        self._recording = recording
        self._blocks = blocks
        self._first = first
        self._sample_rate_hz = sample_rate_hz
        self._samples = 0
        self._feeding = asyncio.create_task(self._feed())

    @classmethod
    async def start(
        cls, gateway: Gateway, wanted: TranscriptionRequest, recording: BinaryIO, key: ApiKey
    ) -> "TranscriptionJob":
        """Opens a stream for a file that begins with audio, and closes the file. GatewayError, also of the file."""
        rate_hz = wanted.group.sample_rate_hz
        decoded = DecodedRecording(recording, key.name, rate_hz, gateway.config.max_file_minutes * 60)
        blocks = decoded.blocks()
        try:
            gateway.streams.check_room(key)  # decoding takes longer than a rejection should
            first = await anext(blocks)
            stream = await gateway.streams.open(wanted.options, key, PROTOCOL)
        except BaseException:
            await blocks.aclose()
            raise
        finally:
            recording.close()
        return cls(stream, decoded, blocks, first, rate_hz)

    @property
    def duration_s(self) -> float:
        """The audio sent so far."""
        return self._samples / self._sample_rate_hz

    @property
    def end_s(self) -> float:
        """Of the audio sent so far, in the file."""
        return self._recording.start_s + self.duration_s

    @property
    def remarks(self) -> Sequence[Remark]:
        """Where samples are missing; known after the events."""
        return self._recording.remarks

    async def events(self) -> AsyncIterator[Event]:
        """The events of the stream. GatewayError, also of the file."""
        start_ms = round(1000 * self._recording.start_s)
        async for event in self._stream.events():
            yield shifted(event, start_ms)
        await self._feeding

    async def close(self) -> None:
        """Ends the stream and the decoding, if they have not ended."""
        self._feeding.cancel()
        await self._stream.cancel()  # first: the client may vanish during the rest, which then ends
        with suppress(asyncio.CancelledError, GatewayError):
            await self._feeding
        await self._blocks.aclose()

    async def _feed(self) -> None:
        try:
            await self._push(self._first)
            async for block in self._blocks:
                await self._push(block)
            await self._stream.finish()
        except GatewayError:
            await self._stream.cancel()  # no more events, if it was the file that failed
            raise

    async def _push(self, block: Samples) -> None:
        self._samples += len(block)
        await self._stream.push(block)
