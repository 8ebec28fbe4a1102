"""Streams without a server, for tests of protocols: words follow from the audio alone.

Every 100 ms frame with a sample above 0.01 is one word: "w0", "w1", ... counted through the stream. Quiet frames for
`endpoint_silence_ms` after a word end the segment.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, replace

import numpy as np

from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import Samples
from penstock_common.results import Alternative, Word
from penstock_common.samples import as_samples
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.activity import Activity
from penstock_gateway.stream.events import Event, Final, Partial, placed
from penstock_gateway.stream.options import LiveStreamOptions, ModelGroup, upstream_options

FRAME_SAMPLES = 1600
FRAME_MS = 100
GROUP = ModelGroup(
    name="fake-asr", model="fake-asr", sample_rate_hz=16_000, context=(70, 6), chunk_ms=560.0, languages=(),
    decoders=("greedy", "alsd"), max_beam_size=4, max_boosted_phrases=2000,
    detected_languages=("en",), alphabet=frozenset("'abcdefghijklmnopqrstuvwxyz"), windows=(), parameters={},
    version="", architecture="RNN-T", max_streams=8, max_request_s=30.0, idle_s=60.0, max_audio_s=0.0, fingerprint="",
    has_language_model=False, has_internal_language_model=False,
)  # fmt: skip


def speech(*parts: float, rate_hz: int = 16_000) -> Samples:
    """Seconds of speech, silence, speech, ..."""
    levels = [np.full(round(seconds * rate_hz), 0.0 if i % 2 else 0.25, np.float32) for i, seconds in enumerate(parts)]
    return np.concatenate(levels)


class FakeStream:
    """One stream; `pushed`, `options` and `is_cancelled` are for assertions."""

    def __init__(self, options: LiveStreamOptions, key: ApiKey, protocol: str):
        self.options = options
        self.key = key
        self.protocol = protocol
        self.pushed: list[Samples] = []
        self.is_cancelled = False
        self.start_s = 0.0
        self.activity = Activity(60.0, parks=True)
        self.remarks: list[Remark] = []
        self.room = asyncio.Event()
        """`push` waits for it: clear it to see backpressure."""
        self.room.set()
        self._pending = np.zeros(0, np.float32)
        self._frames = 0
        self._words = 0
        self._segment = 0
        self._segment_words: list[Word] = []
        self._quiet_ms = 0
        self._failure: GatewayError | None = None
        self._events: asyncio.Queue[Event | GatewayError | None] = asyncio.Queue()

    def fail(self, error: GatewayError) -> None:
        """Loses the stream."""
        self._failure = error
        self._events.put_nowait(error)

    async def push(self, samples: Samples) -> None:
        self._check()
        await self.room.wait()
        samples = as_samples(samples)
        self.pushed.append(samples)
        self._pending = np.concatenate([self._pending, samples])
        while self._pending.size >= FRAME_SAMPLES:
            frame, self._pending = self._pending[:FRAME_SAMPLES], self._pending[FRAME_SAMPLES:]
            self._hear(bool(np.abs(frame).max() > 0.01))

    def note(self, remarks: Iterable[Remark]) -> None:
        self.remarks += (each for each in remarks if each not in self.remarks)

    async def end_segment(self) -> None:
        self._check()
        self._end(forced=True)

    async def change(self, options: LiveStreamOptions, forced: bool) -> None:
        self._check()
        self.options = options
        if forced or options.endpoint_silence_ms:
            self._end(forced=forced)

    async def finish(self) -> None:
        self._check()
        if np.abs(self._pending).max(initial=0.0) > 0.01:
            self._hear(True)
        self._end(is_last=True)
        self._events.put_nowait(None)

    async def cancel(self) -> None:
        self.is_cancelled = True
        self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            if isinstance(event, GatewayError):
                raise event
            yield placed(event, round(1000 * self.start_s), self.options.channel)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _hear(self, is_loud: bool) -> None:
        start_ms = self._frames * FRAME_MS
        self._frames += 1
        if is_loud:
            self._quiet_ms = 0
            self._segment_words.append(Word(f"w{self._words}", start_ms, start_ms + FRAME_MS, 0.5))
            self._words += 1
            # The newest word is not complete yet.
            words = tuple(self._segment_words)
            stable = len(self._text(words[:-1]))
            self._events.put_nowait(Partial(self._segment, self._text(words), stable, words[:-1], self._seconds))
            return
        self._quiet_ms += FRAME_MS
        limit_ms = self.options.endpoint_silence_ms
        if limit_ms and self._segment_words and self._quiet_ms >= limit_ms:
            self._end()

    def _end(self, is_last: bool = False, forced: bool = False) -> None:
        words = tuple(self._segment_words)
        if self.options.speakers:  # two words each
            words = tuple(replace(word, speaker=int(word.text[1:]) // 2 % 2 + 1) for word in words)
        alternatives = tuple(
            Alternative(self._text(words), -0.5 * (rank + 1), words) for rank in range(self.options.n_best)
        )
        end_s = self._seconds if forced or is_last or not words else max(words[-1].end_ms / 1000, self._seconds - 0.4)
        self._events.put_nowait(
            Final(self._segment, self._text(words), words, alternatives, self._seconds, end_s, is_last, forced)
        )
        self._segment += 1
        self._segment_words, self._quiet_ms = [], 0

    @property
    def _seconds(self) -> float:
        return self._frames * FRAME_MS / 1000

    @staticmethod
    def _text(words: tuple[Word, ...]) -> str:
        return " ".join(word.text for word in words)


class FakeStreams:
    """Opens `FakeStream`s; `opened` has all of them."""

    def __init__(self, max_streams: int = 64):
        self.opened: list[FakeStream] = []
        self.sessions: set[object] = set()
        self.groups: tuple[ModelGroup, ...] = (GROUP,)
        self.max_streams = max_streams
        self.open_error: GatewayError | None = None

    def group(self, model: str) -> ModelGroup:
        if model in ("", GROUP.name, "whisper-1"):
            return self.groups[0]
        raise GatewayError(GatewayCode.MODEL_NOT_FOUND, f"there is no model {model!r}; accepted: {GROUP.name}", "model")

    def check(self, options: LiveStreamOptions) -> None:
        upstream_options(options, None)

    def check_room(self, key: ApiKey, streams: int = 1) -> None:
        if sum(not stream.is_cancelled for stream in self.opened) + streams > self.max_streams:
            raise GatewayError(GatewayCode.STREAMS_EXHAUSTED, "all streams are open")

    async def open(self, options: LiveStreamOptions, key: ApiKey, protocol: str) -> FakeStream:
        self.group(options.model)
        if self.open_error is not None:
            raise self.open_error
        self.check_room(key)
        self.opened.append(FakeStream(options, key, protocol))
        return self.opened[-1]

    async def change(
        self, stream: FakeStream, options: LiveStreamOptions, forced: bool = False
    ) -> dict[str, object] | None:
        """Does `ReplicaStreams.change`."""
        before, after = asdict(stream.options), asdict(options) | {"in_session": stream.options.in_session}
        changes = {name: value for name, value in after.items() if value != before[name]}
        keeps_rule = bool(before["endpoint_silence_ms"]) == bool(after["endpoint_silence_ms"])
        if not keeps_rule or changes.keys() - {"phrases", "endpoint_silence_ms", "language"}:
            return None
        if changes:
            await stream.change(replace(options, in_session=stream.options.in_session), forced)
        return changes
