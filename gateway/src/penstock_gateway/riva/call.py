"""One call of Riva's service: its audio into a stream, the stream's events into results. Knows no gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from penstock_client.audio.pcm import Remark
from penstock_client.audio.tracks import Samples
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.riva.audio_input import AudioInput
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.request_mapping import is_forced_end
from penstock_gateway.riva.result_mapping import ResultFormat, final_result, interim_result, is_answer, offline_result
from penstock_gateway.stream.events import Event, Final, shifted
from penstock_gateway.stream.live_stream import LiveStream

_NOTE_S = 10.0
_PIECE_BYTES = 256 << 10
_NO_SAMPLES = np.zeros(0, np.float32)
Messages = AsyncIterator[riva.StreamingRecognizeRequest]
Write = Callable[[riva.StreamingRecognizeResponse], Awaitable[None]]


class Call:
    """Pushes the audio of one call and maps the events of its stream, which the caller closes."""

    def __init__(self, live: LiveStream, audio: AudioInput, form: ResultFormat):
        self._live = live
        self._audio = audio
        self._form = form
        self._id: riva.RequestId | None = None
        self._problem: GatewayError | None = None
        """Of a message: the results of the audio before it come first."""

    @property
    def remarks(self) -> Sequence[Remark]:
        """Where samples of a recording are missing; known at its end."""
        return self._audio.remarks

    async def recognize(self, audio: bytes) -> list[riva.SpeechRecognitionResult]:
        """The results of a whole recording."""
        results: list[riva.SpeechRecognitionResult] = []
        await together(self._push_rest(self._audio.recording(audio)), self._collect(results))
        return results

    async def stream(self, messages: Messages, write: Write, has_interim_results: bool) -> None:
        """Pushes the audio of messages and writes results, until both have ended."""
        await together(self._push_all(messages), self._write_results(write, has_interim_results))
        if self._problem is not None:
            raise self._problem

    async def _push_all(self, messages: Messages) -> None:
        try:
            await self._push_messages(messages)
            await self._push_rest(self._audio.rest())
        except GatewayError as error:
            self._problem = error.again()
            await self._live.finish()  # fails where it is the stream that failed

    async def _push_messages(self, messages: Messages) -> None:
        async for message in messages:
            if message.HasField("streaming_config"):
                raise GatewayError(
                    ErrorCode.FIELD_INVALID,
                    "streaming_config is in a later message; accepted: in the first only",
                    "streaming_config",
                )
            if message.HasField("id"):
                self._id = message.id
            audio = message.audio_content
            for start in range(0, len(audio) or 1, _PIECE_BYTES):  # also without samples yet: the client is not idle
                await self._live.push(self._audio.push(audio[start : start + _PIECE_BYTES]))
            if is_forced_end(message.runtime_config):
                self._audio.check_forced_end()
                await self._live.end_segment()

    async def _push_rest(self, rest: AsyncGenerator[Samples, None]) -> None:
        noting = asyncio.create_task(self._note_decoding())
        try:
            async with aclosing(rest) as blocks:
                async for samples in blocks:
                    await self._live.push(samples)
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
        await self._live.finish()

    async def _note_decoding(self) -> None:
        """Waiting for the decoder, or for a place there, is not silence."""
        while True:
            await asyncio.sleep(_NOTE_S)
            await self._live.push(_NO_SAMPLES)

    async def _events(self) -> AsyncIterator[Event]:
        async for event in self._live.events():
            yield shifted(event, self._audio.start_ms)

    async def _collect(self, results: list[riva.SpeechRecognitionResult]) -> None:
        async for event in self._events():
            if isinstance(event, Final) and is_answer(event):
                results.append(offline_result(event, self._form))

    async def _write_results(self, write: Write, has_interim_results: bool) -> None:
        async for event in self._events():
            if isinstance(event, Final):
                result = final_result(event, self._form) if is_answer(event) else None
            else:
                result = interim_result(event, self._form) if has_interim_results and event.text else None
            if result is not None:
                await write(riva.StreamingRecognizeResponse(results=[result], id=self._id))


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all until they have ended, or one fails: then the others are cancelled, and its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
