"""Streams whose server is lost go on at another one: each word once, with its time in the whole stream."""

import asyncio
import math
import threading

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, results_of
from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import BLOCK, lie
from client.tests.helpers.fakes import RejectionError, texts
from client.tests.helpers.moved_streams import BLOCKS, SPEECH, connected, play, played, read, told, undisturbed
from penstock_client import ClientError, ProtocolError, StreamOptions, limits
from penstock_client.batched.rows import END, FINALIZE
from penstock_client.protocol import MAX_REPLY_BYTES


@pytest.mark.parametrize("marks", [(), (13,), (0, 3, 4, 9, 13, 18, 27)])
@pytest.mark.parametrize("lost_at", [1, 10, 16, BLOCKS - 1])
async def test_a_lost_server_costs_no_word(servers, lost_at, marks, monkeypatch):
    monkeypatch.setattr(limits, "WARM_UP_S", 10 if (lost_at + len(marks)) % 2 else 0.2)
    expected = await undisturbed(servers, marks=marks)
    assert len(expected[0]) == 19
    first, second = servers(), servers()
    results = await played(first, second, lost={lost_at: [first]}, marks=marks)
    assert told(results) == expected
    partials = [one.audio_processed_s for one in results]
    assert partials == sorted(partials)
    assert not second.batch.streams


@pytest.mark.parametrize("lost_at", [2, 4, 16])
async def test_a_server_that_has_more_words_of_the_same_audio(servers, lost_at):
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    second.batch.withheld = 0
    results = await played(first, second, lost={lost_at: [first]})
    assert told(results) == expected
    partials = [one.audio_processed_s for one in results]
    assert partials == sorted(partials)


async def test_the_replay_begins_at_the_newest_border_with_a_warm_up(servers):
    first, second = servers(), servers()
    await played(first, second, lost={16: [first]})
    (started,) = second.batch.starts
    assert started["warm_up_chunks"] == 5  # all that is before the border: 0.5 s of at most 10 s
    assert started["endpoint_silence_ms"] == 800


async def test_words_of_the_last_row_are_not_lost_between_finish_and_the_last_final(servers):
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    assert told(await played(first, second, before_last=lambda: first.die_at_row(1))) == expected
    assert any(flags & END for _, _, flags in second.batch.rows)


async def test_a_server_that_is_lost_with_the_end_of_a_segment_on_its_way(servers):
    expected = await undisturbed(servers, marks=(13,))
    first, second = servers(), servers()

    def die(samples, flags):
        if flags & FINALIZE:
            raise ConnectionError("this server is dead")

    first.batch.before_row = die
    assert told(await played(first, second, marks=(13,))) == expected
    assert any(flags & FINALIZE for _, _, flags in second.batch.rows)


@pytest.mark.parametrize("row", [1, 2, 4, 8])
async def test_a_server_that_is_lost_during_a_replay_is_the_second_of_three(servers, row):
    expected = await undisturbed(servers)
    first, second, third = servers(), servers(), servers()
    second.die_at_row(row)
    assert told(await played(first, second, third, lost={18: [first]})) == expected
    assert second.batch.rows or row == 1


@pytest.mark.parametrize("has_arrived", [False, True])
async def test_late_rejections_of_a_server_that_the_stream_has_left(servers, has_arrived):
    """A server whose models are dead rejects each request, also the end, before or after the arrival."""
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    turns = threading.Semaphore(0)

    def reject(*_):
        turns.acquire(timeout=WAIT_S)
        raise RejectionError("the model is not ready")

    async with connected(first, second) as client:

        async def die(stream, i):
            if i != 12:
                return
            link, first.batch.answer = stream._at.link, reject
            client._servers[0].down_until_s = math.inf
            for count in (1, 2):
                await stream.push([])
                await until(lambda count=count: len(link._in_flight) == count)
            if not has_arrived:
                second.may_answer.clear()
            turns.release()
            await until(lambda: stream._at.link is not link if has_arrived else stream.is_without_server)
            turns.release(2)
            await until(lambda: not link._in_flight and not link._outbox)
            second.may_answer.set()

        assert told(await play(client, die)) == expected
    assert len(second.batch.starts) == 1


async def test_a_lost_server_is_the_last_choice(servers):
    """A dead server still accepts connections. The stream leaves both in turn, each time for the other one."""
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    lost = []

    async def lose(stream, i):
        server = {7: first, 14: second, 18: first}.get(i)
        if server is not None:
            first.batch.before_row = second.batch.before_row = lambda samples, flags: None
            server.batch.before_row = lambda samples, flags: lost.append(flags) or 1 / 0

    assert told(await played(first, second, before_block=lose)) == expected
    assert [flags for flags in lost if not flags & END] == [0, 0, 0]  # no start


async def test_a_stream_that_ends_each_server_is_given_up(servers):
    group = [servers() for _ in range(6)]

    async def poison(stream, i):
        if i == 7:
            for server in group:
                server.batch.before_row = lambda samples, flags: 1 / (0 if samples else 1)

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        await played(*group, before_block=poison)
    assert sum(len(server.batch.starts) for server in group) == 4  # the first, and three moves


@pytest.mark.parametrize(
    "other",
    [{"fingerprint": "other weights"}, {"fingerprint": ""}, {"max_streams": 0}, {"model": "other"}, None],
    ids=str,
)
async def test_without_a_server_that_is_the_same_the_loss_is_reported(servers, monkeypatch, other):
    """None: the other one is lost, too."""
    monkeypatch.setattr(limits, "MOVE_S", 0.3)
    if other and "model" in other:
        other = {**other, "fingerprint": "another model"}
    first, second = servers(), servers(**(other or {}))
    with pytest.raises(ClientError, match=r"CONNECTION_LOST: .*lost the connection to the server at"):
        await played(first, second, lost={7: [first] if other else [second, first]})
    assert not second.batch.starts and not second.batch.streams


async def test_options_that_only_the_lost_server_knew(servers, monkeypatch):
    """Then its loss is reported, not a wrong option."""
    monkeypatch.setattr(limits, "MOVE_S", 0.3)
    first, second = servers(has_language_model="true"), servers()
    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        await played(first, second, lost={7: [first]}, options=StreamOptions(endpoint_silence_ms=800, lm_weight=1.0))


TOO_LARGE = {"LANGUAGE": texts(["a" * (MAX_REPLY_BYTES + 1)])}
WRONG_REPLIES = [
    {"AUDIO_PROCESSED": np.array([[np.nan]], np.float32)}, {"AUDIO_PROCESSED": np.array([[1e30]], np.float32)},
    {"SEGMENT": np.array([[-7]], np.int32)}, {"SEGMENT": np.array([[9]], np.int32)},
    {"STABLE_CHARS": np.array([[2**31 - 1]], np.int32)}, {"ROW": np.array([[7]], np.int32)}, TOO_LARGE,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_REPLIES, ids=lambda wrong: ",".join(wrong))
async def test_a_reply_that_cannot_be_read_moves_the_stream(servers, wrong):
    expected = await undisturbed(servers)
    first, second = servers(), servers()
    lie(first, wrong, lambda number: number >= 3)

    async with connected(first, second) as client:
        results = await play(client)
        assert client._servers[0].down_until_s > client._servers[1].down_until_s == 0
        assert told(results) == expected
    assert second.batch.rows
    assert not first.batch.streams or wrong is TOO_LARGE  # which ends the connection


async def test_servers_whose_replies_cannot_be_read_do_not_pass_a_stream_on_for_ever(servers):
    """Each lies after some good replies, which count as progress of the stream."""
    both = servers(), servers()
    for server in both:
        lie(server, WRONG_REPLIES[0], lambda number: number % 4 == 0)
    with pytest.raises(ProtocolError, match="REPLY_INVALID"):
        await played(*both)
    assert sum(len(server.batch.starts) for server in both) == 4  # the first, and three moves


async def test_closing_ends_streams_whose_moves_have_not_begun(servers):
    async with connected(servers(), servers()) as client:
        early, late = await client.open_stream(), await client.open_stream()
        reading = [asyncio.create_task(results_of(stream)) for stream in (early, late)]
        await early.accepted()
        early._at.link._lose("early")
        asyncio.get_running_loop().call_soon(late._at.link._lose, "late")
        await client.close()
        assert early.is_over and late.is_over
    early, late = await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), WAIT_S)
    assert "early" in str(early) and "late" in str(late)


async def test_bad_audio_moves_nothing(servers):
    first, second = servers(), servers()

    async def run():
        async with connected(first, second) as client, await client.open_stream() as stream:
            await stream.push(np.full(2 * BLOCK, np.nan, np.float32))
            async for _ in stream:
                pass

    with pytest.raises(ClientError, match="AUDIO_INVALID"):
        await run()
    assert not second.batch.rows


async def test_what_is_kept_is_bounded_and_a_stream_without_borders_is_then_not_moved(servers):
    first, second = servers(), servers()
    kept = []

    async def lose(stream, i):
        kept.append(stream.replay_bytes)
        if i == 20:
            await asyncio.to_thread(first.close)

    async def run():
        async with connected(first, second, max_replay_s=0.5, max_unanswered_s=0.5) as client:
            await play(client, lose, options=StreamOptions())

    with pytest.raises(ClientError, match="CONNECTION_LOST"):
        await run()
    assert max(kept) <= 4 * 8000
    assert not second.batch.streams


async def test_a_planned_move_and_one_that_is_rejected(servers):
    expected = await undisturbed(servers)
    first, second = servers(), servers()

    async with connected(first, max_replay_s=1000.0) as source, connected(second) as target:

        async def move(stream, i):
            if i == 5:
                second.batch.is_draining = True
                with pytest.raises(ClientError, match="SERVER_DRAINING"):
                    await target.move_here(stream)
                second.batch.is_draining = False
            if i == 13:
                assert first.batch.streams
                await target.move_here(stream)
                await until(lambda: not first.batch.streams)

        assert told(await play(source, move)) == expected
    assert [flags for _, _, flags in first.batch.rows].count(END) == 1


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(("begin", "end"), [(2, 5), (5, 12), (8, 22), (13, BLOCKS - 1)])
async def test_the_server_that_a_stream_leaves_answers_it_until_the_other_one_has_caught_up(
    servers, begin, end, is_lost
):
    """Also over borders, and where it is lost before that."""
    expected = await undisturbed(servers)
    first, second = servers(), servers()

    async with connected(first, max_replay_s=1000.0) as source, connected(second) as target:
        moves = []

        async def move(stream, i):
            if i == begin:
                second.may_answer.clear()
                moves.append(asyncio.create_task(target.move_here(stream)))
                await until(lambda: stream.moves.are_under_way)
            if i == end:
                assert not second.batch.rows
                if is_lost:
                    await asyncio.to_thread(first.close)
                    await until(lambda: stream.is_without_server)
                second.may_answer.set()
                await moves[0]
                await until(lambda: len(second.batch.streams) == 1 and (is_lost or not first.batch.streams))

        results = await play(source, move)
    assert told(results) == expected
    partials = [one.audio_processed_s for one in results]
    assert partials == sorted(partials)


@pytest.mark.parametrize("how", ["cancel", "finish", "end_segment"])
@pytest.mark.parametrize("begin", [0, 5, 9])
async def test_a_stream_that_ends_or_ends_its_segment_while_it_catches_up(servers, begin, how):
    first, second = servers(), servers()

    async with connected(first, max_replay_s=1000.0) as source, connected(second) as target:
        stream = await source.open_stream(StreamOptions(endpoint_silence_ms=800))
        results: list = []
        reading = asyncio.create_task(read(stream, results))
        for i in range(begin):
            await stream.push(SPEECH[i * BLOCK : (i + 1) * BLOCK])
        await until(lambda: stream.is_answered)
        second.may_answer.clear()
        move = asyncio.create_task(target.move_here(stream))
        await until(lambda: stream.moves.arrival is not None)
        if how == "end_segment":
            await stream.end_segment()
            await until(lambda: stream.is_answered)
            await stream.push(SPEECH[:BLOCK])
        elif how == "finish":
            await stream.finish()
            await until(lambda: stream.is_over)
        else:
            stream.cancel()
        second.may_answer.set()
        if how == "end_segment":
            await move
            await stream.push(SPEECH[BLOCK : 2 * BLOCK])
            await stream.finish()
        else:
            with pytest.raises(ClientError):
                await move
        await asyncio.wait([reading], timeout=WAIT_S)
        await until(lambda: not first.batch.streams and not second.batch.streams)
        words = [word.text for result in results for word in result.new_words]
    spoken = ["w1", "w2", "w3", "w4", "w5"][: min(begin, 5)]
    if how == "end_segment":
        assert words == [*spoken, "w1", "w2"]
    elif how == "finish":
        assert words == spoken
