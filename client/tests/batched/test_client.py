"""Streams of a `BatchedClient` against a server on a real socket. No test depends on how rows are packed."""

import asyncio
import math
import random
import threading
import time

import numpy as np
import pytest

from client.tests.helpers.batched_client import (
    CHUNK,
    WAIT_S,
    answers_of,
    connected,
    noise,
    results_of,
    rows_of,
    transcript,
    whole_text,
)
from penstock_client import BatchedStream, Result, StreamClosedError
from penstock_client.batched.client import BatchedClient
from penstock_client.batched.rows import END, FINALIZE, START


async def test_every_row_has_an_answer(server):
    reported = []
    note = lambda *given: reported.append(given)  # noqa: E731
    async with connected(server) as client, await client.open_stream(on_answer=note) as stream:
        for samples in (700, 0, 1000):
            await stream.push(noise(samples))
        await stream.finish()
        answers = await answers_of(stream)
        assert stream.rows == len(answers) == 5
    assert [answer.end_samples for answer in answers] == [0, 700, 700, 1700, 1700]
    assert [len(answer.results) for answer in answers] == [0, 1, 0, 1, 1]
    assert [samples for samples, _ in reported] == [answer.end_samples for answer in answers]
    assert all(round_trip_s > 0 for _, round_trip_s in reported)
    assert transcript([result for answer in answers for result in answer.results]).text.split() == whole_text(1700)


async def test_each_of_many_streams_gets_its_own_words(server):
    async def speak(client, seed):
        chance = random.Random(seed)
        samples = chance.randrange(0, 20_000)
        audio, sent = noise(samples), 0
        stream = await client.open_stream()
        async with stream:
            while sent < samples:
                size = chance.choice([1, 160, 1600, 5000])
                await stream.push(audio[sent : sent + size])
                sent += size
                await asyncio.sleep(chance.random() / 200)
            await stream.finish()
            results = await results_of(stream)
        assert transcript(results).text.split() == [word.text for word in transcript(results).words]
        assert transcript(results).text.split() == whole_text(samples)
        assert transcript(results).tokens == list(range(len(whole_text(samples))))
        assert [result.is_last for result in results] == [False] * (len(results) - 1) + [True]
        assert all(result.round_trip_s > 0 for result in results)

    async with connected(server) as client:
        await asyncio.gather(*(speak(client, seed) for seed in range(24)))
    assert server.batch.recognizer.received == {}
    assert len(server.batch.batches) < sum(map(len, server.batch.batches))  # some rows did share a request


async def test_rows_are_whole_chunks_and_a_segments_rest(server):
    async with connected(server) as client, await client.open_stream() as stream:
        for _ in range(25):
            await stream.push(noise(100))
        await stream.end_segment()
        await stream.push(noise(1800))
        assert stream.held_samples == 600  # the end of the segment has moved no border
        await stream.push([])
        await stream.finish(noise(1000))
        results = await results_of(stream)
    assert rows_of(server, 1) == [
        (0, START), (700, 0), (1000, 0), (800, FINALIZE), (1200, 0), (0, 0), (1600, END),
    ]  # fmt: skip
    assert [(r.is_final, r.answers_finalize, r.is_last) for r in results if r.is_final] == [
        (True, True, False),
        (True, False, True),
    ]
    assert transcript(results).audio_processed_s == pytest.approx(5300 / 16_000)


@pytest.mark.parametrize("is_aligned", [False, True])
async def test_without_a_geometry_each_push_is_a_row(server, recognizer, is_aligned):
    if is_aligned:
        recognizer.server_parameters.pop("chunk_samples")

    async with connected(server, align=is_aligned) as client, await client.open_stream() as stream:
        await stream.push(noise(100))
        await stream.push(noise(10))
        await stream.finish(noise(3 * 32_000 + 1))
        await results_of(stream)
    assert rows_of(server, 1) == [(0, START), (100, 0), (10, 0), (32_000, 0), (32_000, 0), (1, 0), (32_000, END)]


async def test_a_stream_that_is_cancelled_before_it_was_sent_leaves_no_trace(server):
    async with connected(server) as client:
        (await client.open_stream()).cancel()
        async with await client.open_stream() as other:
            await other.finish()
            await results_of(other)
    assert rows_of(server, 1) == []


async def test_closing_the_client_ends_its_streams(server, recognizer):
    async with connected(server) as client:
        streams = [await client.open_stream() for _ in range(5)]
        for stream in streams:
            await stream.accepted()
    with pytest.raises(StreamClosedError, match="the client is closed"):
        await client.open_stream()
    for stream in streams:
        with pytest.raises(StreamClosedError):
            await stream.push(noise(10))
    assert recognizer.received == {}


async def test_a_finished_stream_takes_no_more(server):
    async with connected(server) as client, await client.open_stream() as stream:
        await stream.finish()
        for call in (stream.push(noise(10)), stream.end_segment(), stream.finish()):
            with pytest.raises(StreamClosedError, match="finished"):
                await call
        with pytest.raises(ValueError, match="samples have"):
            await stream.push(np.zeros((2, 2)))


async def test_pushing_waits_while_too_much_is_unanswered(server):
    may_answer = threading.Event()
    server.on_request = lambda: may_answer.wait(WAIT_S)

    async with connected(server, max_unanswered_s=0.5) as client, await client.open_stream() as stream:
        pushing = asyncio.create_task(stream.push(noise(40_000)))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not pushing.done()
        may_answer.set()
        await pushing
        await stream.finish()
        assert transcript(await results_of(stream)).text.split() == whole_text(40_000)
    assert max(samples for samples, _ in rows_of(server, 1)) <= 8000 + CHUNK


@pytest.mark.parametrize("end", ["end_segment", "change"])
async def test_few_ends_of_segments_are_on_their_way(server, end):
    """A server decodes each by itself, and its other streams wait."""
    may_answer = threading.Event()
    server.on_request = lambda: may_answer.wait(WAIT_S)

    async with connected(server) as client, await client.open_stream() as stream:

        async def end_many():
            for number in range(9):
                options = {"boosted_phrases": [(f"a{number}", 1.0)]}
                await (stream.change(options) if end == "change" else stream.end_segment(noise(10)))

        ending = asyncio.create_task(end_many())
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert (stream.rows, ending.done()) == (5, False)
        may_answer.set()
        await ending
        await stream.finish()
        assert sum(result.is_final for result in await results_of(stream)) == 10


async def test_a_server_that_is_behind_gets_fewer_requests(server):
    """Requests of a client with several streams are spaced out."""
    async with connected(server) as client, await client.open_stream() as stream, await client.open_stream():
        await stream.accepted()
        server.on_request = lambda: time.sleep(0.2)
        requests = len(server.batch.batches)
        for _ in range(100):
            await stream.push(noise(0))
            await asyncio.sleep(0.001)
        await stream.finish()
        await results_of(stream)
        assert (len(server.batch.batches) - requests) < 50
    assert len(rows_of(server, 1)) == 102


async def test_a_request_stays_below_the_size_that_servers_take_by_default(server):
    async with connected(server) as client:
        streams = [await client.open_stream() for _ in range(40)]
        await asyncio.gather(*(stream.finish(noise(32_000)) for stream in streams))
        for stream in streams:
            assert transcript(await results_of(stream)).text.split() == whole_text(32_000)
    samples = [rows[:, 1].sum() for rows in server.batch.batches]
    assert sum(samples) == 40 * 32_000 and max(samples) <= 900_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_unanswered_s": 0}, "max_unanswered_s is 0"),
        *(({"slow_s": value}, f"slow_s is {value}, expected 0 or") for value in (-1.0, math.inf, math.nan)),
        *(({"max_replay_s": value}, f"max_replay_s is {value}, expected") for value in (-1.0, 1.9, math.inf, math.nan)),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchedClient("localhost:8001", **arguments)


class _Rows:
    """A link whose server is the test."""

    client_id = "me"
    is_lost = False

    def __init__(self):
        self.pushed = []

    def next_number(self):
        return 1

    def add(self, stream):
        pass

    def now_s(self):
        return 0.0

    def enqueue(self, pushed):
        self.pushed.append(pushed)


async def test_an_answer_may_end_segments_and_begin_the_next():
    """Only the newest result of a row has what the row asked for."""
    link = _Rows()
    stream = BatchedStream(link, {}, None, 32_000)
    stream.start()
    assert stream.name == "1 of client 'me'"

    await stream.push(noise(32_000))
    await stream.end_segment(noise(16_000))
    results = [Result(segment, "a", segment < 2, 0.4 + segment, (), (), ()) for segment in range(3)]
    stream.answer(link.pushed[1], results, None)
    stream.answer(link.pushed[2], [Result(2, "a", True, 3.0, (), (), ())], None)
    answers = aiter(stream)
    found = [await anext(answers) for _ in range(4)]
    assert [(one.is_final, one.end_s, one.answers_finalize) for one in found] == [
        (True, 0.4, False),
        (True, 1.4, False),
        (False, 0.0, False),
        (True, 3.0, True),
    ]
