"""Streams whose server is lost go on at another one: each word once, with its time in the whole stream."""

import asyncio
import contextlib
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, until
from client.tests.helpers.fake_fleet import BLOCK, FleetServer, speech
from penstock_client import BatchedClient, ClientError, StreamOptions
from penstock_client.batched import client as batched_client
from penstock_client.batched.link import Link
from penstock_client.batched.wire import END, START
from penstock_client.connection import ConnectionOptions

SPEECH = speech(1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 15, 16, 17, 18, 19)
"""Endpoints behind w5 and w14."""
OPTIONS = StreamOptions(endpoint_silence_ms=800)
BLOCKS = len(SPEECH) // BLOCK


@pytest.fixture
def servers():
    with contextlib.ExitStack() as stack:

        def make(*arguments, **named):
            server = FleetServer(*arguments, **named)
            stack.callback(server.close)
            return server

        yield make


@contextlib.asynccontextmanager
async def connected(*servers, **arguments):
    arguments = {"timeout_s": WAIT_S, "connection_options": ConnectionOptions(connect_retry_s=0), **arguments}
    async with BatchedClient([server.url for server in servers], **arguments) as client:
        yield client


async def play(client, before_block=None, marks=(), options=OPTIONS, before_last=None):
    """The results of a stream of SPEECH, block by block. `before_block` is awaited with the stream and its position.

    Segments are ended before the blocks of `marks`.
    """
    results = []
    async with await client.open_stream(options) as stream:
        reading = asyncio.create_task(_read(stream, results))
        with contextlib.suppress(ClientError):  # reading has it, too
            for i in range(BLOCKS):
                if before_block:
                    await before_block(stream, i)
                if i in marks:
                    await stream.end_segment()
                await stream.push(SPEECH[i * BLOCK : (i + 1) * BLOCK])
                await until(lambda: stream.is_answered or reading.done())
            if before_last:
                before_last()
            await stream.finish()
        await asyncio.wait_for(reading, WAIT_S)
    return results


async def _read(stream, results):
    async for result in stream:
        results.append(result)


def told(results):
    """What a caller shows: words with their times, and the segments."""
    words = [(word.text, word.start_ms, word.end_ms) for result in results for word in result.new_words]
    finals = [
        (one.segment, one.text, round(one.end_s, 4), one.answers_finalize, one.is_last)
        for one in results
        if one.is_final
    ]
    return words, finals


def undisturbed(servers, **arguments):
    async def run():
        async with connected(servers()) as client:
            return told(await play(client, **arguments))

    return asyncio.run(run())


@pytest.mark.parametrize("marks", [(), (13,)])
@pytest.mark.parametrize("lost_at", [1, 4, 9, 10, 13, 16, 23, 24, BLOCKS - 1])
def test_a_lost_server_costs_no_word(servers, lost_at, marks):
    expected = undisturbed(servers, marks=marks)
    assert len(expected[0]) == 19
    first, second = servers(), servers()

    async def lose(stream, i):
        if i == lost_at:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second) as client:
            return await play(client, lose, marks)

    results = asyncio.run(run())
    assert told(results) == expected
    partials = [one.audio_processed_s for one in results]
    assert partials == sorted(partials)
    assert not second.batch.streams


def test_the_replay_begins_at_the_newest_border_with_a_warm_up(servers):
    first, second = servers(), servers()

    async def lose(stream, i):
        if i == 16:
            assert stream.replay_samples
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second) as client:
            return await play(client, lose)

    asyncio.run(run())
    (started,) = second.batch.starts
    assert started["warm_up_chunks"] == 5  # all that is before the border: 0.5 s of at most 10 s
    assert started["endpoint_silence_ms"] == 800


def test_words_of_the_last_row_are_not_lost_between_finish_and_the_last_final(servers):
    expected = undisturbed(servers)
    first, second = servers(), servers()

    async def run():
        async with connected(first, second) as client:
            return await play(client, before_last=lambda: first.die_at_row(1))

    assert told(asyncio.run(run())) == expected
    assert any(flags & END for _, _, flags in second.batch.rows)


@pytest.mark.parametrize("row", [1, 2, 4, 8])
def test_a_server_that_is_lost_during_a_replay_is_the_second_of_three(servers, row):
    expected = undisturbed(servers)
    first, second, third = servers(), servers(), servers()
    second.die_at_row(row)

    async def lose(stream, i):
        if i == 18:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second, third) as client:
            return await play(client, lose)

    assert told(asyncio.run(run())) == expected
    assert second.batch.rows or row == 1


def test_a_stream_that_moves_twice(servers):
    expected = undisturbed(servers)
    group = [servers() for _ in range(3)]

    async def lose(stream, i):
        if i in (7, 17):
            await asyncio.to_thread(group[i == 17].close)

    async def run():
        async with connected(*group) as client:
            return await play(client, lose)

    assert told(asyncio.run(run())) == expected


def test_a_stream_that_ends_each_server_is_given_up(servers):
    group = [servers() for _ in range(6)]

    async def poison(stream, i):
        if i == 7:
            for server in group:
                server.batch.before_row = lambda samples, flags: 1 / (0 if samples else 1)

    async def run():
        async with connected(*group) as client:
            await play(client, poison)

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        asyncio.run(run())
    assert sum(len(server.batch.starts) for server in group) == 4  # the first, and three moves


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "other weights"},
        {"fingerprint": ""},
        {"max_streams": 0},
        {"model": "other"},
    ],
    ids=str,
)
def test_without_a_server_that_is_the_same_the_loss_is_reported(servers, monkeypatch, other):
    monkeypatch.setattr(batched_client, "MAX_WAIT_S", 0.3)
    if "model" in other:
        other = {**other, "fingerprint": "another model"}
    first, second = servers(), servers(**other)

    async def lose(stream, i):
        if i == 7:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second) as client:
            await play(client, lose)

    with pytest.raises(ClientError, match=r"CONNECTION_LOST: .*lost the connection to the server at"):
        asyncio.run(run())
    assert not second.batch.starts and not second.batch.streams


def test_options_that_only_the_lost_server_knew(servers, monkeypatch):
    """Then its loss is reported, not a wrong option."""
    monkeypatch.setattr(batched_client, "MAX_WAIT_S", 0.3)
    first, second = servers(has_language_model="true"), servers()

    async def lose(stream, i):
        if i == 7:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second) as client:
            await play(client, lose, options=StreamOptions(endpoint_silence_ms=800, lm_weight=1.0))

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        asyncio.run(run())


def test_all_servers_are_down(servers, monkeypatch):
    monkeypatch.setattr(batched_client, "MAX_WAIT_S", 0.3)
    first, second = servers(), servers()

    async def lose(stream, i):
        if i == 7:
            await asyncio.to_thread(second.close)
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second) as client:
            await play(client, lose)

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        asyncio.run(run())


def test_bad_audio_moves_nothing(servers):
    first, second = servers(), servers()

    async def run():
        async with connected(first, second) as client, await client.open_stream() as stream:
            await stream.push(np.full(2 * BLOCK, np.nan, np.float32))
            async for _ in stream:
                pass

    with pytest.raises(ClientError, match="AUDIO_INVALID"):
        asyncio.run(run())
    assert not second.batch.rows


def test_a_server_behind_a_black_hole_is_passed_over(servers):
    """It accepts connections, and answers nothing at all."""
    expected = undisturbed(servers)
    first, third = servers(), servers()

    async def lose(stream, i):
        if i == 14:
            await asyncio.to_thread(first.close)

    async def run(hole):
        async with connected(first, hole, third, timeout_s=1.0) as client:
            return await play(client, lose)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        hole = SimpleNamespace(url=f"127.0.0.1:{listener.getsockname()[1]}")
        assert told(asyncio.run(run(hole))) == expected
    assert third.batch.starts


def test_a_server_that_accepts_a_start_and_answers_nothing_more(servers):
    """As one behind a black hole. The stream goes on at a third one, and what comes late is ignored."""
    expected = undisturbed(servers)
    first, silent, third = servers(), servers(), servers()
    silent.batch.before_row = lambda samples, flags: silent.may_answer.clear() if flags & START else None

    async def lose(stream, i):
        if i == 14:
            await asyncio.to_thread(first.close)
        if i == 25:
            silent.may_answer.set()

    async def run():
        async with connected(first, silent, third, timeout_s=1.0) as client:
            return await play(client, lose)

    assert told(asyncio.run(run())) == expected
    assert silent.batch.starts


def test_a_server_that_answers_late_after_its_stream_moved(servers):
    expected = undisturbed(servers)
    first, second = servers(), servers()

    async def lose(stream, i):
        if i == 12:
            first.may_answer.clear()
        if i == 20:
            first.may_answer.set()

    async def run():
        async with connected(first, second, timeout_s=1.0) as client:
            return await play(client, lose)

    assert told(asyncio.run(run())) == expected
    assert second.batch.starts


def test_a_slow_server_that_answers_an_empty_stream_keeps_its_streams(servers):
    expected = undisturbed(servers)
    first, second = servers(), servers()
    slow = [False]

    def slowly(samples, flags):
        if slow and slow.pop():
            time.sleep(2.0)

    async def stall(stream, i):
        if i == 12:
            slow.append(True)

    async def run():
        first.batch.before_row = slowly
        async with connected(first, second, timeout_s=0.5, slow_s=WAIT_S) as client:
            return await play(client, stall)

    assert told(asyncio.run(run())) == expected
    assert first.batch.probes and not second.batch.starts


def test_a_process_that_was_stalled_itself_judges_no_server(servers, monkeypatch):
    first, second = servers(), servers()
    stalled_s = 0.0
    monkeypatch.setattr(Link, "now_s", staticmethod(lambda: time.monotonic() + stalled_s))

    async def stall(stream, i):
        nonlocal stalled_s
        if i == 12:
            first.may_answer.clear()
            link = stream._link
            await stream.push(np.zeros(0, np.float32))
            await until(lambda: link._in_flight)
            sent_s, stalled_s = link.now_s(), 100.0
            await until(lambda: link.is_lost or link._last_activity_s > sent_s + 99)
            first.may_answer.set()

    async def run():
        async with connected(first, second, timeout_s=4.0) as client:
            return await play(client, stall)

    asyncio.run(run())
    assert len(first.batch.starts) == 1 and not second.batch.starts


def test_what_is_kept_is_bounded_and_a_stream_without_borders_is_then_not_moved(servers):
    first, second = servers(), servers()
    kept = []

    async def lose(stream, i):
        kept.append(stream.replay_samples)
        if i == 20:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second, max_replay_s=0.5) as client:
            await play(client, lose, options=StreamOptions())

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        asyncio.run(run())
    assert max(kept) <= 8000
    assert not second.batch.streams


def test_a_planned_move_and_one_that_is_rejected(servers):
    expected = undisturbed(servers)
    first, second = servers(), servers()

    async def run():
        async with connected(first) as source, connected(second) as target:

            async def move(stream, i):
                if i == 5:
                    second.batch.is_draining = True
                    with pytest.raises(ClientError, match="SERVER_DRAINING"):
                        await target.take(stream)
                    second.batch.is_draining = False
                if i == 13:
                    assert first.batch.streams
                    await target.take(stream)
                    await until(lambda: not first.batch.streams)

            source._servers[0]._settings = source._servers[0]._settings._replace(max_replay_samples=16_000_000)
            return await play(source, move)

    assert told(asyncio.run(run())) == expected
    assert [flags for _, _, flags in first.batch.rows].count(END) == 1
