"""Speech in parts for clients of a gateway, the recordings that they play, and the words that they collect."""

import asyncio

import numpy as np
import pytest

from loadtest.gateway_clients import Speech, Text, words_of
from loadtest.gateway_recordings import PAUSE_S, RATE_HZ, joined_recordings


async def taken(speech: Speech) -> list[np.ndarray]:
    return [part async for part in speech]


def test_the_pieces_are_the_speech():
    samples = np.arange(4000, dtype=np.int16)
    speech = Speech(samples, is_paced=False)
    parts = asyncio.run(taken(speech))
    assert [len(part) for part in parts] == [1600, 1600, 800]
    assert np.array_equal(np.concatenate(parts), samples)
    assert speech.begin_s <= speech.end_s


def test_a_piece_is_sent_when_its_last_sample_is_spoken():
    speech = Speech(np.zeros(4000, np.int16))
    asyncio.run(taken(speech))
    assert speech.end_s - speech.begin_s >= 0.25


def test_the_first_piece_waits_for_the_start():
    order = []

    async def wait() -> None:
        order.append("started")

    async def run() -> None:
        async for _ in Speech(np.zeros(1600, np.int16), is_paced=False, wait=wait):
            order.append("part")

    asyncio.run(run())
    assert order == ["started", "part"]


@pytest.mark.parametrize(
    ("processed_s", "due_s"), [(0.0, 0.0), (0.1, 0.1), (0.57, 0.6), (float(np.float32(1.7)), 1.7), (1.75, 1.75)]
)
def test_audio_is_due_with_the_piece_that_completes_it(processed_s, due_s):
    speech = Speech(np.zeros(28_000, np.int16))
    speech.begin_s = 100.0
    assert speech.due_s(processed_s) == pytest.approx(100 + due_s)


def test_words_are_those_of_final_texts():
    async def texts():
        yield Text("one", False)
        yield Text("one", True, words=(("one", 0, 80),))
        yield Text("", True)
        yield Text("two", True, words=(("two", 900, 980),))

    assert asyncio.run(words_of(texts())) == (("one", 0, 80), ("two", 900, 980))


def test_joined_recordings_end_with_a_pause_and_depend_on_the_seed_alone():
    first = joined_recordings(3, 20.0)
    assert first.dtype == np.int16 and first.size >= 20 * RATE_HZ
    assert not first[-round(PAUSE_S * RATE_HZ) :].any() and first.any()
    assert np.array_equal(first, joined_recordings(3, 20.0))
    assert not np.array_equal(first, joined_recordings(4, 20.0))
