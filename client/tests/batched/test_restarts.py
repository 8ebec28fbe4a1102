"""Restarts at endpoints over a recognizer whose words follow from its audio: segments are those of their own audio."""

import asyncio

import numpy as np
import pytest

from penstock_client import Result, StreamClosedError, StreamResult, Word
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.replica_stream import ReplicaStream
from penstock_gateway.stream.segments import Segments

pytestmark = pytest.mark.anyio
RATE_HZ = 16_000
FRAME, FRAME_MS = 160, 10
WORD, WORD_MS = 1600, 100
SILENCE_FRAMES = 80
CHUNK_FRAMES = 30


class Recognizer:
    """A `BatchedStream`. A change of the level is a word, which is named after it; endpoints are checked per chunk.

    Results arrive when `step` is called, so that a test decides what is on its way meanwhile.
    """

    def __init__(self):
        self.todo = []
        self.results = asyncio.Queue()
        self.received = self.first = 0
        self.audio = np.zeros(0, np.float32)
        self.is_over = False
        self.begin()

    def begin(self):
        self.first = self.received
        self.audio = self.audio[:0]
        self.frames, self.words, self.new, self.quiet, self.level = 0, [], [], 0, 0.0

    async def push(self, samples):
        self.todo.append((np.array(samples), False, False))

    async def end_segment(self):
        self.todo.append((np.zeros(0, np.float32), True, False))

    async def finish(self):
        self.todo.append((np.zeros(0, np.float32), False, True))

    def cancel(self):
        self.is_over = True

    def step(self):
        samples, is_finalize, is_end = self.todo.pop(0)
        self.received += len(samples)
        self.audio = np.concatenate([self.audio, samples])
        found = []
        while len(self.audio) >= (self.frames + CHUNK_FRAMES) * FRAME:
            self.hear(CHUNK_FRAMES)
            if self.words and self.quiet >= SILENCE_FRAMES:
                found.append(self.result(True))
                self.words, self.quiet = [], 0  # the recognizer goes on
            elif self.new:
                found.append(self.result(False))
        if is_finalize or is_end:
            self.hear(len(self.audio) // FRAME - self.frames)
            found.append(self.result(True, is_finalize, is_end))
            self.begin()
        for result in found:
            self.results.put_nowait(result)
        if is_end:
            self.results.put_nowait(None)

    def hear(self, frames):
        for _ in range(frames):
            level = self.audio[self.frames * FRAME]
            start_ms = 1000 * self.first // RATE_HZ + self.frames * FRAME_MS
            if level and level != self.level:
                self.new.append(Word(f"w{round(level * 100)}", start_ms, start_ms + WORD_MS, 0.5))
                self.words.append(self.new[-1])
            self.level = level
            self.quiet = 0 if level else self.quiet + 1
            self.frames += 1

    def result(self, is_final, answers_finalize=False, is_last=False):
        is_all = answers_finalize or is_last
        processed_s = (self.first + (len(self.audio) if is_all else self.frames * FRAME)) / RATE_HZ
        new, self.new = tuple(self.new), []
        text = " ".join(word.text for word in self.words)
        return StreamResult(
            0, text, is_final, processed_s, new, (), (), answers_finalize=answers_finalize, is_last=is_last
        )

    async def __aiter__(self):
        while (result := await self.results.get()) is not None:
            if self.is_over:
                raise StreamClosedError(1, "closed")
            yield result


class Report:
    def __getattr__(self, name):
        return lambda *values: None


def audio(*parts):
    """Words of 100 ms, each with a level of its own, and silence: 3, -9 is three words and 0.9 s of silence."""
    levels, word = [], 0
    for part in parts:
        for _ in range(abs(part)):
            word += part > 0
            levels.append(word / 100 if part > 0 else 0.0)
    return np.repeat(np.array(levels, np.float32), WORD)


async def segments_of(samples, piece, rng, has_restarts=True, forced_at=()):
    """The finals of a stream that is sent in pieces, while answers come at random times."""
    recognizer = Recognizer()
    stream = ReplicaStream(recognizer, Segments(RATE_HZ, has_restarts), Report(), lambda stream: None, 2 * RATE_HZ)
    finals = []

    async def read():
        async for event in stream.events():
            if isinstance(event, Final):
                finals.append(event)

    reading = asyncio.create_task(read())

    async def answer(most):
        for _ in range(min(most, len(recognizer.todo))):
            recognizer.step()
            await asyncio.sleep(0)

    for start in range(0, len(samples), piece):
        await stream.push(samples[start : start + piece])
        if start // piece in forced_at:
            await stream.end_segment()
        await asyncio.sleep(0)
        await answer(rng.integers(0, 4))
    await stream.finish()
    while not reading.done():
        await answer(9)
        await asyncio.sleep(0)
    await reading
    return finals


AUDIO = audio(3, -12, 2, -4, 1, -30, 4, -11, 1)
STARTS_MS = [0, 100, 200, 1500, 1600, 2100, 5200, 5300, 5400, 5500, 6700]


def starts_ms(finals):
    return [word.start_ms for final in finals for word in final.words]


@pytest.mark.parametrize("piece", [400, 1600, 5000, 16_000, 10**6])
@pytest.mark.parametrize("seed", range(4))
async def test_segments_depend_on_the_audio_alone(piece, seed):
    finals = await segments_of(AUDIO, piece, np.random.default_rng(seed))
    texts = [final.text for final in finals]
    assert [text for text in texts if text] == ["w1 w2 w3", "w4 w5 w6", "w7 w8 w9 w10", "w11"]
    assert starts_ms(finals) == pytest.approx(STARTS_MS, abs=FRAME_MS)
    assert [final.is_last for final in finals] == [False] * (len(finals) - 1) + [True]
    assert [final.segment for final in finals] == list(range(len(finals)))
    assert not any(final.forced for final in finals)
    assert finals[0].end_s == pytest.approx((0.3 + 1.2) / 2)  # the pause is seen after four chunks


@pytest.mark.parametrize("seed", range(8))
async def test_every_forced_end_is_answered_once_in_its_place(seed):
    rng = np.random.default_rng(seed)
    forced_at = set(rng.integers(0, len(AUDIO) // 1600, 4).tolist())
    finals = await segments_of(AUDIO, 1600, rng, forced_at=forced_at)
    assert sum(final.forced for final in finals) == len(forced_at)
    words = [word.text for final in finals for word in final.words]
    assert words == [f"w{i}" for i in range(1, 12)]
    assert starts_ms(finals) == pytest.approx(STARTS_MS, abs=FRAME_MS)
    borders = [final.end_s for final in finals if final.forced]
    assert borders == pytest.approx([(at + 1) * 0.1 for at in sorted(forced_at)])


async def test_without_restarts_the_times_are_the_recognizers():
    finals = await segments_of(AUDIO, 1600, np.random.default_rng(0), has_restarts=False)
    words = [word.text for final in finals for word in final.words]
    assert words == [f"w{i}" for i in range(1, 12)]
    assert finals[-1].is_last and not finals[-1].forced


def test_a_partial_without_news_is_no_event():
    segments = Segments(RATE_HZ, True)
    segments.note_sent(np.zeros(3200, np.float32))
    result = StreamResult(0, "a", False, 0.1, (), (), ())
    assert segments.add(result).text == "a"
    assert segments.add(result) is None
    assert isinstance(result, Result)
