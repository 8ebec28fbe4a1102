"""Clients of a gateway's protocols: they send parts of 16-bit samples, and yield texts as they arrive."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import numpy as np
import websockets

from loadtest.player import Answer
from penstock_client import SAMPLE_RATE_HZ, Segment, ServerFullError, StreamError, Transcript
from penstock_client.batched.signal import AsyncSignal
from penstock_gateway.riva.proto import riva_asr_pb2 as riva_pb2

CONNECTION_ERRORS = (grpc.aio.AioRpcError, websockets.WebSocketException, OSError)
"""Errors of the clients where the gateway or the connection fails."""
_RIVA_METHOD = "/nvidia.riva.asr.RivaSpeechRecognition/StreamingRecognize"
_COMPLETED, _DELTA = "transcription.completed", "transcription.delta"
_DETAILS = [f"item.input_audio_transcription.{name}" for name in ("words", "interim")]
_FULL = "STREAMS_EXHAUSTED"
_LETTERS = {letter: number for number, letter in enumerate("ABCDEFGH", start=1)}

Word = tuple[str, int, int]
"""Text, start and end in ms from the start of the stream."""


class GatewayFullError(ConnectionError):
    """The gateway has no stream left."""


class Text(NamedTuple):
    """The text of a segment so far, or its final text."""

    text: str
    is_final: bool
    processed_s: float | None = None
    """End of the audio that it covers, from the start of the stream; None where the protocol does not have it."""
    words: tuple[Word, ...] = ()
    """Empty unless it is a final text."""
    speakers: tuple[int | None, ...] = ()
    """The speaker of each word, from 1, where the stream asks for them; None where a speaker is not known."""


Texts = AsyncGenerator[Text, None]
LOST_REASON = "Internal error from Core"
"""Details of an error whose reason gRPC's asyncio client has lost, in a write to a call that was just ending."""


async def riva_texts(
    address: str,
    parts: AsyncIterable[np.ndarray],
    rate_hz: int = 16_000,
    key: str | None = None,
    has_speakers: bool = False,
    **fields: Any,
) -> Texts:
    """Texts of a StreamingRecognize call over a connection of its own. Segments end as the gateway is set.

    `fields`: further ones of its `RecognitionConfig`.
    """
    if has_speakers:
        fields["diarization_config"] = riva_pb2.SpeakerDiarizationConfig(enable_speaker_diarization=True)

    async def messages() -> AsyncIterator[riva_pb2.StreamingRecognizeRequest]:
        config = riva_pb2.RecognitionConfig(
            encoding=1, sample_rate_hertz=rate_hz, enable_word_time_offsets=True, verbatim_transcripts=True, **fields
        )
        streaming = riva_pb2.StreamingRecognitionConfig(config=config, interim_results=True)
        yield riva_pb2.StreamingRecognizeRequest(streaming_config=streaming)
        # The gateway has accepted the stream, or ended the call: gRPC loses the reason in a write to an ended call.
        await call.initial_metadata()
        async for part in parts:
            yield riva_pb2.StreamingRecognizeRequest(audio_content=part.tobytes())

    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, own_connection) as channel:
        call = channel.stream_stream(
            _RIVA_METHOD,
            riva_pb2.StreamingRecognizeRequest.SerializeToString,
            riva_pb2.StreamingRecognizeResponse.FromString,
        )(messages(), metadata=[("authorization", f"Bearer {key}")] if key else None)
        try:
            async for response in call:
                for result in response.results:
                    best = result.alternatives[0]
                    words = tuple((word.word, word.start_time, word.end_time) for word in best.words)
                    speakers = tuple(word.speaker_tag or None for word in best.words) if has_speakers else ()
                    yield Text(best.transcript.strip(), result.is_final, result.audio_processed, words, speakers)
        except grpc.aio.AioRpcError as error:
            if (error.details() or "").startswith(_FULL):
                raise GatewayFullError(error.details()) from error
            raise


async def realtime_texts(
    address: str, parts: AsyncIterable[np.ndarray], rate_hz: int = 16_000, has_speakers: bool = False, **connection: Any
) -> Texts:
    """Texts of OpenAI's Realtime protocol, in one segment, with the interim texts and words that are extensions.

    A gateway that stops ends the segment by itself: its text comes, then ConnectionError.
    `connection`: arguments of `websockets.connect`.
    """
    audio: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": rate_hz}, "turn_detection": None}
    if has_speakers:
        audio["transcription"] = {"speakers": "on"}
    session = {"type": "transcription", "audio": {"input": audio}, "include": _DETAILS}
    url = f"ws://{address}/v1/realtime?intent=transcription"
    async with websockets.connect(url, compression=None, max_queue=None, **connection) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": session}))

        is_committed = False

        async def send() -> None:
            nonlocal is_committed
            async for part in parts:
                data = base64.b64encode(part.tobytes()).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            is_committed = True
            await socket.send('{"type": "input_audio_buffer.commit"}')

        async with _sending(send()):
            text = ""
            async for event in _events(socket):
                kind = event["type"]
                if kind.endswith(_DELTA):
                    text += event["delta"]
                    interim = " ".join(filter(None, (text.strip(), event.get("interim", "").strip())))
                    yield Text(interim, False, event["audio_end_ms"] / 1000)
                elif kind.endswith(_COMPLETED):
                    timed = event.get("words", [])
                    words = tuple((one["word"], round(1000 * one["start"]), round(1000 * one["end"])) for one in timed)
                    speakers = tuple(_LETTERS.get(one["speaker"]) for one in timed) if has_speakers else ()
                    yield Text(event["transcript"], True, None, words, speakers)
                    if is_committed:
                        return


async def _events(socket: websockets.ClientConnection) -> AsyncIterator[dict]:
    """Raises ConnectionError for an error event, and for a close with a reason."""
    try:
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "error":
                raise ConnectionError(f"{event['type']}: {event['error']}")
            yield event
    except websockets.ConnectionClosedError as closed:
        reason = closed.rcvd.reason if closed.rcvd else str(closed)
        raise (GatewayFullError if reason.startswith(_FULL) else ConnectionError)(reason) from closed
    raise ConnectionError("the gateway closed the connection before the final text")


@asynccontextmanager
async def _sending(work: Any) -> AsyncIterator[None]:
    """Runs a coroutine beside the block. The block sees what becomes of the connection, so its errors are dropped."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class GatewayVoice:
    """A stream of a gateway, opened when it is entered. Raises ClientError as an `AsyncStream` does.

    A text answers the part with the last sample that it covers, and all parts before it.
    A gateway sends changed texts only, so chunks without a change are not seen.
    """

    held_samples = 0
    """All samples make requests at once."""

    def __init__(self, open_texts: Callable[[AsyncIterator[np.ndarray]], Texts]):
        """`open_texts`: parts of int16 samples at 16 kHz to texts."""
        self.transcript = Transcript()
        self._answers: list[Answer] = []
        self._changed = AsyncSignal()
        self._open_texts = open_texts
        self._parts: asyncio.Queue[np.ndarray | None] = asyncio.Queue()
        self._unanswered: deque[tuple[float, float]] = deque()
        """Time when each part was sent, and the end of its audio."""
        self._sent_s = self._processed_s = 0.0

    async def send(self, samples: np.ndarray) -> None:
        """Sends samples [n]."""
        self._sent_s += len(samples) / SAMPLE_RATE_HZ
        self._unanswered.append((self._now_s(), self._sent_s))
        self._parts.put_nowait(np.round(samples * 32768).clip(-32768, 32767).astype(np.int16))

    async def finish(self, samples: np.ndarray = ()) -> None:
        """Ends the stream after these samples."""
        if len(samples):
            await self.send(samples)
        self._parts.put_nowait(None)

    async def __aenter__(self) -> "GatewayVoice":
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(lambda _: self._changed.give())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def poll(self, wait_s: float = 0.0) -> list[Answer]:
        """The answers that have arrived; waits up to `wait_s` for the first or for the last result."""
        if not self._answers and not self._reading.done() and wait_s > 0:
            await self._changed.wait(wait_s)
        answers, self._answers = self._answers, []
        if not answers and self._reading.done():
            self._reading.result()
        return answers

    async def _audio(self) -> AsyncIterator[np.ndarray]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def _read(self) -> None:
        try:
            async for text in self._open_texts(self._audio()):
                if text.is_final:
                    self.transcript.segments.append(Segment(text.text, is_final=True))
                elif text.processed_s is not None:
                    self._answer(text.processed_s)
        except GatewayFullError as error:
            raise ServerFullError("gateway", str(error)) from error
        except CONNECTION_ERRORS as error:
            raise StreamError("gateway", f"{type(error).__name__}: {error}", "GATEWAY_FAILED") from error
        self._answer(self._sent_s)
        self.transcript.is_complete = True

    def _answer(self, processed_s: float) -> None:
        """Answers the parts up to the first one with `processed_s`, which is the one that completed the chunk."""
        while self._unanswered and self._processed_s < processed_s:
            sent_at_s, end_s = self._unanswered.popleft()
            if end_s + 0.5 / SAMPLE_RATE_HZ >= processed_s:
                self._processed_s = processed_s
            self._answers.append(Answer(self._now_s() - sent_at_s, self._processed_s))
            self._changed.give()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
