"""Restarts at endpoints over a recognizer whose words follow from its audio: segments are those of their own audio."""

import asyncio

import numpy as np
import pytest

from penstock_client import Result, StreamClosedError, Word
from penstock_client.alignment import ChunkGeometry
from penstock_client.batched.stream import BatchedStream
from penstock_client.batched.wire import END, FINALIZE, START
from penstock_client.restarting import RestartingStream

RATE_HZ = 16_000
FRAME, FRAME_MS = 160, 10
WORD, WORD_MS = 1600, 100
SILENCE_FRAMES = 80
CHUNK_FRAMES = 30
GEOMETRY = ChunkGeometry(CHUNK_FRAMES * FRAME, CHUNK_FRAMES * FRAME)


class Recognizer:
    """A link and the server behind it. A change of the level is a word, which is named after it; endpoints are checked
    per chunk.

    Rows are answered when `step` is called, so that a test decides what is on its way meanwhile.
    """

    def __init__(self):
        self.todo = []
        self.rows = []
        """(samples since the segment's start, flags) of each row, once it was received."""
        self.received = self.first = 0
        self.audio = np.zeros(0, np.float32)
        self.begin()

    def now_s(self):
        return 0.0

    def enqueue(self, pushed):
        self.todo.append(pushed)

    def forget(self, stream):
        flags = [pushed.row.flags for pushed in self.todo]
        self.todo.clear()
        return sum(set(flags))

    def begin(self):
        self.first = self.received
        self.audio = self.audio[:0]
        self.frames, self.words, self.new, self.quiet, self.level = 0, [], [], 0, 0.0

    def step(self):
        pushed = self.todo.pop(0)
        samples, flags = pushed.row.samples, pushed.row.flags
        self.received += len(samples)
        self.audio = np.concatenate([self.audio, samples])
        self.rows.append((len(self.audio), flags))
        found = []
        while len(self.audio) >= (self.frames + CHUNK_FRAMES) * FRAME:
            self.recognize(CHUNK_FRAMES)
            if self.words and self.quiet >= SILENCE_FRAMES:
                found.append(self.result(True))
                self.words, self.quiet = [], 0  # the recognizer goes on
            elif self.new:
                found.append(self.result(False))
        if flags & (FINALIZE | END):
            self.recognize(len(self.audio) // FRAME - self.frames)
            found.append(self.result(True, is_all=True))
            self.begin()
        pushed.stream.answer(pushed, found, None)

    def recognize(self, frames):
        for _ in range(frames):
            level = self.audio[self.frames * FRAME]
            start_ms = 1000 * self.first // RATE_HZ + self.frames * FRAME_MS
            if level and level != self.level:
                self.new.append(Word(f"w{round(level * 100)}", start_ms, start_ms + WORD_MS, 0.5))
                self.words.append(self.new[-1])
            self.level = level
            self.quiet = 0 if level else self.quiet + 1
            self.frames += 1

    def result(self, is_final, is_all=False):
        processed_s = (self.first + (len(self.audio) if is_all else self.frames * FRAME)) / RATE_HZ
        new, self.new = tuple(self.new), []
        return Result(0, " ".join(word.text for word in self.words), is_final, processed_s, new, (), ())


def audio(*parts):
    """Words of 100 ms, each with a level of its own, and silence: 3, -9 is three words and 0.9 s of silence."""
    levels, word = [], 0
    for part in parts:
        for _ in range(abs(part)):
            word += part > 0
            levels.append(word / 100 if part > 0 else 0.0)
    return np.repeat(np.array(levels, np.float32), WORD)


async def recognized(samples, piece, rng, restarting, forced_at=(), geometry=None):
    """The results of a stream that is sent in pieces, while answers come at random times; and the recognizer."""
    recognizer = Recognizer()
    stream = BatchedStream(1, recognizer, "{}", geometry, 2 * RATE_HZ, restarting=restarting)

    async def read():
        return [result async for result in stream]

    reading = asyncio.create_task(read())

    async def send():
        for start in range(0, len(samples), piece):
            await stream.push(samples[start : start + piece])
            if start // piece in forced_at:
                await stream.end_segment()
            await asyncio.sleep(0)
        await stream.finish()

    sending = asyncio.create_task(send())
    while not (reading.done() and sending.done()):
        for _ in range(min(rng.integers(0, 4), len(recognizer.todo))):
            recognizer.step()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    await sending
    return await reading, recognizer


def segments_of(samples, piece, seed, has_restarts=True, forced_at=(), geometry=None):
    """Final results with all words of their segments."""
    restarting = RestartingStream() if has_restarts else None
    found, _ = asyncio.run(recognized(samples, piece, np.random.default_rng(seed), restarting, forced_at, geometry))
    finals, words = [], []
    for result in found:
        words += result.new_words
        if result.is_final:
            finals.append((result, words))
            words = []
    assert not words
    assert [final.is_last for final, _ in finals] == [False] * (len(finals) - 1) + [True]
    return finals


AUDIO = audio(3, -12, 2, -4, 1, -30, 4, -11, 1)
STARTS_MS = [0, 100, 200, 1500, 1600, 2100, 5200, 5300, 5400, 5500, 6700]


def starts_ms(finals):
    return [word.start_ms for _, words in finals for word in words]


@pytest.mark.parametrize("geometry", [None, GEOMETRY], ids=["at-once", "aligned"])
@pytest.mark.parametrize("piece", [400, 1600, 5000, 16_000, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_segments_depend_on_the_audio_alone(piece, seed, geometry):
    finals = segments_of(AUDIO, piece, seed, geometry=geometry)
    texts = [final.text for final, _ in finals]
    assert [text for text in texts if text] == ["w1 w2 w3", "w4 w5 w6", "w7 w8 w9 w10", "w11"]
    assert starts_ms(finals) == pytest.approx(STARTS_MS, abs=FRAME_MS)
    assert [final.segment for final, _ in finals] == list(range(len(finals)))
    assert not any(final.answers_finalize for final, _ in finals)
    assert finals[0][0].end_s == pytest.approx(1.2 - 0.4)  # the pause is seen after four chunks
    assert finals[-1][0].end_s == finals[-1][0].audio_processed_s == pytest.approx(len(AUDIO) / RATE_HZ)


@pytest.mark.parametrize("seed", range(8))
def test_every_forced_end_is_answered_once_in_its_place(seed):
    forced_at = set(np.random.default_rng(seed).integers(0, len(AUDIO) // 1600, 4).tolist())
    finals = segments_of(AUDIO, 1600, seed, forced_at=forced_at, geometry=GEOMETRY)
    assert sum(final.answers_finalize for final, _ in finals) == len(forced_at)
    assert [word.text for _, words in finals for word in words] == [f"w{i}" for i in range(1, 12)]
    assert starts_ms(finals) == pytest.approx(STARTS_MS, abs=FRAME_MS)
    borders = [final.end_s for final, _ in finals if final.answers_finalize]
    assert borders == pytest.approx([(at + 1) * 0.1 for at in sorted(forced_at)])


def test_without_restarts_the_times_are_the_recognizers():
    finals = segments_of(AUDIO, 1600, 0, has_restarts=False)
    assert [word.text for _, words in finals for word in words] == [f"w{i}" for i in range(1, 12)]
    assert all(final.end_s == final.audio_processed_s for final, _ in finals)


@pytest.mark.parametrize("seed", range(4))
def test_rows_end_with_chunks_also_behind_a_restart(seed):
    _, recognizer = asyncio.run(
        recognized(AUDIO, 400, np.random.default_rng(seed), RestartingStream(), geometry=GEOMETRY)
    )
    assert sum(flags == FINALIZE for _, flags in recognizer.rows) > 3
    rows = [(before, row) for before, row in zip(recognizer.rows, recognizer.rows[1:], strict=False) if not row[1]]
    unaligned = [before for before, (samples, _) in rows if samples % (CHUNK_FRAMES * FRAME)]
    assert len(rows) > 10
    assert all(flags == FINALIZE for _, flags in unaligned), "only what is sent again at once, behind an endpoint"


def test_a_stream_that_is_cancelled_behind_its_finish_is_ended():
    async def run():
        recognizer = Recognizer()
        stream = BatchedStream(1, recognizer, "{}", None, 2 * RATE_HZ, restarting=RestartingStream())
        assert [pushed.row.flags for pushed in recognizer.todo] == [START]
        recognizer.step()
        await stream.finish(AUDIO[:1600])
        assert [pushed.row.flags for pushed in recognizer.todo] == [FINALIZE]
        stream.cancel()
        assert [pushed.row.flags for pushed in recognizer.todo] == [END]
        with pytest.raises(StreamClosedError):
            await anext(aiter(stream))

    asyncio.run(run())


def test_int16_is_sent_again_as_float32():
    pcm = np.round(AUDIO * 32767).astype(np.int16)
    finals = segments_of(pcm, 1600, 0)
    assert starts_ms(finals) == pytest.approx(STARTS_MS, abs=FRAME_MS)
