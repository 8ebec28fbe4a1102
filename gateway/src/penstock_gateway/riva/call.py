"""One call of Riva's service: its audio into a stream, the stream's events into results. Knows no gRPC."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import Samples
from penstock_common.results import Word
from penstock_common.writing import blank_between
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.riva.audio_input import CallAudio
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.request_mapping import ResultFormat, is_forced_end
from penstock_gateway.stream.channels import CallStreams
from penstock_gateway.stream.events import Event, Final, confidence
from penstock_gateway.stream.replica_stream import ReplicaStream

_PIECE_BYTES = 256 << 10
Messages = AsyncIterator[riva.StreamingRecognizeRequest]
Change = Callable[[Mapping[str, str], bool], Awaitable[bool]]
"""Takes a message's `runtime_config`, and whether it forces the segment's end."""
Write = Callable[[riva.StreamingRecognizeResponse], Awaitable[None]]


def streaming_result(event: Event, form: ResultFormat) -> riva.StreamingRecognitionResult:
    """The result of a segment, the best alternative first, or its text so far.

    Stability is the share of its characters that cannot change.
    """
    if is_final := isinstance(event, Final):
        alternatives, stability = _alternatives(event, form), 1.0
    else:
        text = riva.SpeechRecognitionAlternative(transcript=event.text, language_code=_languages(form))
        alternatives, stability = [text], event.stable_chars / len(event.text)
    return riva.StreamingRecognitionResult(
        alternatives=alternatives,
        is_final=is_final,
        stability=stability,
        channel_tag=event.channel or 1,  # of a mix as of the only one
        audio_processed=event.audio_processed_s,
    )


def offline_result(event: Final, form: ResultFormat) -> riva.SpeechRecognitionResult:
    """The same segment in the response of `Recognize`."""
    return riva.SpeechRecognitionResult(
        alternatives=_alternatives(event, form), channel_tag=event.channel or 1, audio_processed=event.audio_processed_s
    )


def is_answer(event: Final) -> bool:
    """True if a client gets a result for the segment: it has text, or the client itself ended it."""
    return bool(event.text) or event.forced


def _alternatives(event: Final, form: ResultFormat) -> list[riva.SpeechRecognitionAlternative]:
    """The text of the segment, then the other alternatives; the list has the best one first."""
    best = _alternative(event.text, event.words, form, form.has_words)
    others = event.alternatives[1 : form.max_alternatives]
    return [best, *(_alternative(other.text, other.words, form, has_words=False) for other in others)]


def _alternative(
    text: str, words: Sequence[Word], form: ResultFormat, has_words: bool
) -> riva.SpeechRecognitionAlternative:
    """Clients join transcripts without a space of their own, so one ends a transcript, but in a script without any."""
    return riva.SpeechRecognitionAlternative(
        transcript=text + blank_between(text, "a"),
        confidence=min(map(confidence, words), default=0.0),
        words=[_word(word, form.language) for word in words] if has_words else (),
        language_code=_languages(form),
    )


def _word(word: Word, language: str) -> riva.WordInfo:
    return riva.WordInfo(
        word=word.text,
        start_time=word.start_ms,
        end_time=word.end_ms,
        confidence=confidence(word),
        speaker_tag=word.speaker or 0,
        language_code=language,
    )


def _languages(form: ResultFormat) -> list[str]:
    return [form.language] if form.language else []


class Call:
    """Pushes the audio of one call and maps the events of its streams, which the caller closes."""

    def __init__(self, live: CallStreams, audio: CallAudio, form: ResultFormat, change: Change):
        """change: changes the stream's options; False where nothing in them differs."""
        self._live = live
        self._audio, self._change = audio, change
        self._form = form
        self._id: riva.RequestId | None = None
        self._writing = asyncio.Lock()
        self._problem: GatewayError | None = None
        """Error in a message: the results of the audio before it come first."""

    @property
    def remarks(self) -> Sequence[Remark]:
        """On the audio and its text; known at the end."""
        return self._live.note(self._audio.remarks)

    async def recognize(self, audio: bytes) -> list[riva.SpeechRecognitionResult]:
        """The results of a whole recording."""
        results: list[riva.SpeechRecognitionResult] = []
        await together(self._push_rest(self._audio.recording(audio)), self._collect(results))
        return results

    async def stream(self, messages: Messages, write: Write, has_interim_results: bool) -> None:
        """Pushes the audio of messages and writes results, until both have ended."""
        writers = [self._write_results(stream, write, has_interim_results) for stream in self._live.streams]
        await together(self._push_all(messages), *writers)
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
                problem = "streaming_config is in a later message; accepted: in the first only"
                raise GatewayError(GatewayCode.FIELD_INVALID, problem, "streaming_config")
            if message.HasField("id"):
                self._id = message.id
            audio = self._audio.message(message.audio_content)
            for start in range(0, len(audio) or 1, _PIECE_BYTES):  # also without samples yet: the client is not idle
                await self._live.push(self._audio.push(audio[start : start + _PIECE_BYTES]))
            if remarks := self._audio.remarks:
                self._live.note(remarks)
            if runtime_config := message.runtime_config:
                await self._end_segment(runtime_config)

    async def _end_segment(self, runtime_config: Mapping[str, str]) -> None:
        """Ends the segment if a message asks for it, or changes options."""
        is_forced = is_forced_end(runtime_config)
        if is_forced:
            await self._live.push(self._audio.forced_end())
        is_changed = await self._change(runtime_config, is_forced)
        if is_forced and not is_changed:
            await self._live.end_segment()

    async def _push_rest(self, rest: AsyncGenerator[Samples, None]) -> None:
        with self._live.waiting():  # for a decoder, or until one is free
            async with aclosing(rest) as blocks:
                async for samples in blocks:
                    self._live.start_at(self._audio.start_s)
                    await self._live.push(samples)
        await self._live.finish()

    async def _collect(self, results: list[riva.SpeechRecognitionResult]) -> None:
        results += [offline_result(final, self._form) for final in await self._live.finals() if is_answer(final)]

    async def _write_results(self, stream: ReplicaStream, write: Write, has_interim_results: bool) -> None:
        async for event in stream.events():
            if is_answer(event) if isinstance(event, Final) else has_interim_results and event.text:
                result = streaming_result(event, self._form)
                async with self._writing:
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
