"""Clients of a gateway's protocols, and the direct one: they send the same speech, and yield texts as they arrive."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import grpc
import httpx2
import numpy as np
import websockets

from loadtest.fresh_gateway import RunningGateway
from penstock_client import AsyncClient, StreamOptions
from penstock_gateway.riva.proto import riva_asr_pb2 as riva_pb2

PART_S = 0.1
"""Audio per message, as from a microphone."""
CONNECTION_ERRORS = (grpc.aio.AioRpcError, websockets.WebSocketException, httpx2.HTTPError, OSError)
"""What the clients raise where the gateway or the connection fails."""
_RIVA_METHOD = "/nvidia.riva.asr.RivaSpeechRecognition/StreamingRecognize"
_COMPLETED, _DELTA = "transcription.completed", "transcription.delta"
_DETAILS = [f"item.input_audio_transcription.{name}" for name in ("words", "interim")]

Word = tuple[str, int, int]
"""Its text, start and end in ms from the start of the stream."""


class Text(NamedTuple):
    """The text of a segment so far, or its final text."""

    text: str
    is_final: bool
    processed_s: float | None = None
    """End of the audio that it covers, from the start of the stream; None where the protocol does not have it."""
    words: tuple[Word, ...] = ()
    """Of a final text."""


Texts = AsyncGenerator[Text, None]


class Speech:
    """16-bit samples [n] in parts of 100 ms, each at the moment when its last sample is spoken. Iterate it once."""

    def __init__(
        self,
        samples: np.ndarray,
        rate_hz: int = 16_000,
        is_paced: bool = True,
        wait: Callable[[], Awaitable[object]] | None = None,
    ):
        """Without `is_paced` the parts come as fast as they are taken. `wait` is awaited before the first one."""
        self.rate_hz = rate_hz
        self.begin_s = self.end_s = float("nan")
        """Of the monotonic clock: when the first sample is spoken, and when the last part was taken."""
        self._samples = samples
        self._part_samples = round(rate_hz * PART_S)
        self._is_paced = is_paced
        self._wait = wait

    async def __aiter__(self) -> AsyncIterator[np.ndarray]:
        if self._wait is not None:
            await self._wait()
        self.begin_s = time.monotonic()
        for start in range(0, len(self._samples), self._part_samples):
            part = self._samples[start : start + self._part_samples]
            if self._is_paced:
                await asyncio.sleep(self.begin_s + (start + len(part)) / self.rate_hz - time.monotonic())
            yield part
        self.end_s = time.monotonic()

    def due_s(self, processed_s: float) -> float:
        """When the part with the last sample of the first `processed_s` is spoken."""
        parts = -(-round(processed_s * self.rate_hz) // self._part_samples)
        return self.begin_s + min(parts * self._part_samples, len(self._samples)) / self.rate_hz


async def direct_texts(client: AsyncClient, speech: Speech, silence_ms: int = 0) -> Texts:
    """Of `penstock_client`, at 16 kHz. Replies without news are left out. `silence_ms` ends a segment; 0: none does."""
    options = StreamOptions(endpoint_silence_ms=silence_ms)
    async with client.open_stream(options=options) as stream:

        async def send() -> None:
            async for part in speech:
                await stream.send(part)
            await stream.finish()

        last = ""
        async with _sending(send()):
            async for result in stream:
                found = stream.transcript.segments[-1].words if result.is_final else []
                words = tuple((word.text, word.start_ms, word.end_ms) for word in found)
                if result.is_final or result.text != last:
                    yield Text(result.text, result.is_final, result.audio_processed_s, words)
                last = "" if result.is_final else result.text


async def riva_texts(gateway: RunningGateway, speech: Speech) -> Texts:
    """Of a StreamingRecognize call over a connection of its own. Segments end as the gateway is set."""

    async def messages() -> AsyncIterator[riva_pb2.StreamingRecognizeRequest]:
        config = riva_pb2.RecognitionConfig(
            encoding=1, sample_rate_hertz=speech.rate_hz, enable_word_time_offsets=True, verbatim_transcripts=True
        )
        streaming = riva_pb2.StreamingRecognitionConfig(config=config, interim_results=True)
        yield riva_pb2.StreamingRecognizeRequest(streaming_config=streaming)
        async for part in speech:
            yield riva_pb2.StreamingRecognizeRequest(audio_content=part.tobytes())

    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(gateway.grpc, own_connection) as channel:
        call = channel.stream_stream(
            _RIVA_METHOD,
            riva_pb2.StreamingRecognizeRequest.SerializeToString,
            riva_pb2.StreamingRecognizeResponse.FromString,
        )(messages())
        async for response in call:
            for result in response.results:
                best = result.alternatives[0]
                words = tuple((word.word, word.start_time, word.end_time) for word in best.words)
                yield Text(best.transcript.strip(), result.is_final, result.audio_processed, words)


async def realtime_texts(
    gateway: RunningGateway,
    speech: Speech,
    has_endpoints: bool = False,
    has_details: bool = True,
    **connection: Any,
) -> Texts:
    """Of OpenAI's Realtime protocol. With `has_endpoints` segments end as the gateway is set.

    Such a speech must end with a pause, so that the commit at its end is answered by an empty text. `has_details`: asks
    for interim texts and words, which are extensions. `connection`: arguments of `websockets.connect`.
    """
    form = {"type": "audio/pcm", "rate": speech.rate_hz}
    audio = {"format": form} if has_endpoints else {"format": form, "turn_detection": None}
    session = {"type": "transcription", "audio": {"input": audio}, "include": _DETAILS if has_details else []}
    url = f"ws://{gateway.http}/v1/realtime?intent=transcription"
    async with websockets.connect(url, compression=None, max_queue=None, **connection) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": session}))

        async def send() -> None:
            async for part in speech:
                data = base64.b64encode(part.tobytes()).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            await socket.send('{"type": "input_audio_buffer.commit"}')

        async with _sending(send()):
            text = ""
            async for message in socket:
                event = json.loads(message)
                kind = event["type"]
                if kind == "error" or kind.endswith(".failed"):
                    raise ConnectionError(f"{kind}: {event['error']}")
                if kind.endswith(_DELTA):
                    text += event["delta"]
                    interim = " ".join(filter(None, (text.strip(), event.get("interim", "").strip())))
                    yield Text(interim, False, event["audio_end_ms"] / 1000 if has_details else None)
                elif kind.endswith(_COMPLETED):
                    text = ""
                    yield Text(event["transcript"], True, None, _ms(event.get("words", [])))
                    if not (has_endpoints and event["transcript"]):
                        return


async def upload_texts(gateway: RunningGateway, recording: bytes) -> Texts:
    """Of an upload of a file to `/v1/audio/transcriptions`: its final text."""
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    async with httpx2.AsyncClient(timeout=120) as client:
        url = f"http://{gateway.http}/v1/audio/transcriptions"
        response = await client.post(url, files={"file": recording}, data=fields)
    if response.status_code != httpx2.codes.OK:
        raise ConnectionError(f"status {response.status_code}: {response.text}")
    body = response.json()
    yield Text(body["text"], True, body["duration"], _ms(body["words"]))


async def words_of(texts: Texts) -> tuple[Word, ...]:
    """The words of all final texts."""
    async with aclosing(texts):
        return tuple([word async for text in texts if text.is_final for word in text.words])


def _ms(words: list[dict]) -> tuple[Word, ...]:
    return tuple((word["word"], round(1000 * word["start"]), round(1000 * word["end"])) for word in words)


@asynccontextmanager
async def _sending(work: Any) -> AsyncIterator[None]:
    """Runs a coroutine beside the block. The block sees what becomes of the connection, so its errors are dropped."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
