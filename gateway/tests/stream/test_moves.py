"""Streams whose replica is lost go on at another one: clients see neither a gap in the words nor a repeated one."""

import asyncio

import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import BLOCK, lie, speech
from client.tests.helpers.moved_streams import BLOCKS, SPEECH, closing, read
from gateway.tests.helpers.stream_calls import events_of, opened, rejection
from penstock_client import limits as client_limits
from penstock_client.batched.rows import END, START
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.stream import replicas
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.replica_stream import ReplicaStream

PROBE = START | END


async def play(streams, before_block=None, audio=SPEECH, **options):
    """The events of a stream, block by block; `before_block` is awaited with the stream and the block's number."""
    stream = await opened(streams, **options)
    events = []
    reading = asyncio.create_task(read(stream.events(), events))
    try:
        for i in range(len(audio) // BLOCK):
            if before_block:
                await before_block(stream, i)
            await stream.push(audio[i * BLOCK : (i + 1) * BLOCK])
            await until(lambda: stream._upstream.is_answered or reading.done())
        await stream.finish()
        await asyncio.wait_for(reading, 60)
    except GatewayError:
        await asyncio.gather(reading, return_exceptions=True)
        raise
    return events


def told(events):
    return [
        (one.segment, one.text, one.words, round(one.end_s, 3), one.forced, one.is_last)
        for one in events
        if isinstance(one, Final)
    ]


@pytest.mark.parametrize("lost_at", [3, 22])
async def test_a_lost_replica_costs_no_word(fleet, open_streams, metrics, lost_at):
    first, second = fleet(max_streams=9), fleet()
    async with open_streams(fleet()) as streams:
        expected = told(await play(streams))
    async with open_streams(first, second) as streams:
        events = await play(streams, closing(first, lost_at))
        assert streams.live == 0 and not second.batch.streams
        assert [replica.live for replica in streams._groups[0].replicas] == [0, 0]
    assert told(events) == expected and len(expected) == 3
    partials = [event.audio_processed_s for event in events if isinstance(event, Partial)]
    assert partials == sorted(partials)
    value = metrics.registry.get_sample_value
    assert value("penstock_gateway_streams_moved_total", {"reason": "CONNECTION_LOST"}) == 1


async def test_a_replica_whose_replies_cannot_be_read_counts_as_down(fleet, open_streams, caplog):
    """A replica that does not accept a stream, and one that has accepted it."""
    async with open_streams(fleet()) as streams:
        expected = told(await play(streams))
    first, second, third = fleet(max_streams=20), fleet(max_streams=12), fleet()
    answer = first.batch.answer
    first.batch.answer = lambda client, tensors: (
        answer(client, tensors) | ({} if tensors["ROWS"][0, 0, 2] == PROBE else {"ROW": np.array([[7]], np.int32)})
    )
    lie(second, {"SEGMENT": np.array([[-7]], np.int32)}, lambda number: number >= 5)
    async with open_streams(first, second, third) as streams:
        streams._groups[0].replicas[2].note_full(3600.0)  # so that the second one comes before it

        async def admit(stream, i):
            streams._groups[0].replicas[2].note_full(0.0)

        assert told(await play(streams, admit)) == expected
    for liar in (first, second):
        assert f"replica {liar.url} is down: stream" in caplog.text
    assert third.batch.starts


async def test_a_replica_that_stalls_without_streams_gets_none_meanwhile(fleet, open_streams, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.1)
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.0)
    stalled, other = fleet(), fleet()
    async with open_streams(stalled, other, timeout_s=1.0) as streams:
        (group,) = streams._groups
        stalled.may_answer.clear()
        await until(lambda: [each.address for each in group.candidates()] == [other.url])
        stalled.may_answer.set()
        await until(lambda: len(group.candidates()) == 2)


async def test_the_only_replica_gets_its_streams_back_when_it_starts_again(fleet, open_streams, monkeypatch):
    monkeypatch.setattr(limits, "PROBE_S", 0.1)
    async with open_streams(fleet()) as streams:
        expected = told(await play(streams))
    only = fleet()
    async with open_streams(only) as streams:
        only.die_at_row(9)
        playing = asyncio.create_task(play(streams))
        await until(lambda: not streams._groups[0].is_up)
        only.batch.streams.clear()
        only.batch.before_row = lambda samples, flags: None
        assert told(await playing) == expected
        assert streams._groups[0].replicas[0].live == 0 and not only.batch.streams


@pytest.mark.parametrize("fingerprint", ["other weights", ""])
async def test_no_stream_goes_on_with_other_weights(fleet, open_streams, monkeypatch, caplog, fingerprint):
    monkeypatch.setattr(client_limits, "MOVE_S", 0.3)
    first, second = fleet("" if not fingerprint else "same", max_streams=9), fleet(fingerprint)
    async with open_streams(second, first) as streams:
        for replica in streams._groups[0].replicas[:1]:
            replica.note_full(3600.0)
        with pytest.raises(GatewayError) as caught:
            await play(streams, closing(first, 9))
        assert caught.value.code is GatewayCode.STREAM_LOST
        if fingerprint:
            assert "the others differ in model, settings or version" in str(caught.value)
        assert not second.batch.streams and not second.batch.starts
    assert first.url in caplog.text


async def test_streams_are_not_moved_without_a_longest_segment(fleet, open_streams):
    first, second = fleet(max_streams=9), fleet()
    async with open_streams(first, second, longest_segment_s=0) as streams:
        with pytest.raises(GatewayError, match="the server of the stream failed"):
            await play(streams, closing(first, 9))
    assert not second.batch.starts


async def test_a_stream_too_long_to_be_moved_harms_no_replica(fleet, open_streams, monkeypatch):
    """The stream's options end no segments."""
    monkeypatch.setattr(client_limits, "MOVE_S", 0.3)
    monkeypatch.setattr(limits, "MAX_UNANSWERED_S", 0.5)
    monkeypatch.setattr(replicas, "_MORE_REPLAY_S", -4.5)
    first, second = fleet(max_streams=9), fleet()
    async with open_streams(first, second, longest_segment_s=5) as streams:
        with pytest.raises(GatewayError, match="the server of the stream failed"):
            await play(streams, closing(first, 20), endpoint_silence_ms=0, extra={"endpoint_longest_s": 0})
        assert not second.batch.starts
        assert [replica.address for replica in streams._groups[0].candidates()] == [second.url]


async def test_streams_of_a_lost_replica_are_spread(fleet, open_streams):
    first, *others = fleet(max_streams=60), fleet(), fleet()
    async with open_streams(first, *others) as streams:
        for replica in streams._groups[0].replicas[1:]:
            replica.note_full(3600.0)
        live = [await opened(streams) for _ in range(6)]
        for replica in streams._groups[0].replicas[1:]:
            replica.note_full(0.0)
        for stream in live:
            await stream.push(SPEECH)
        await asyncio.to_thread(first.close)
        for stream in live:
            await stream.finish()
            assert len(told(await events_of(stream))) == 3
    assert [len(server.batch.starts) for server in others] == [3, 3]


async def test_a_stream_that_is_cancelled_on_its_way_leaves_no_slot(fleet, open_streams):
    first, second = fleet(max_streams=9), fleet()
    async with open_streams(first, second) as streams:
        stream = await opened(streams)
        await stream.push(SPEECH)
        second.may_answer.clear()
        await asyncio.to_thread(first.close)
        await until(lambda: stream._upstream.is_without_server)
        await stream.cancel()
        second.may_answer.set()
        await until(lambda: not any(replica.live for replica in streams._groups[0].replicas))
        await until(lambda: not second.batch.streams)


async def test_new_streams_are_rejected_where_the_memory_of_moves_is_full(fleet, open_streams, monkeypatch):
    first, second = fleet(max_streams=9), fleet()
    async with open_streams(first, second, replay_mib=1) as streams:
        live = await opened(streams)
        monkeypatch.setattr(ReplicaStream, "replay_bytes", 1 << 20)
        error = await rejection(opened(streams))
        assert (error.code, error.message) == (GatewayCode.OVERLOADED, "the audio of live streams fills 1 MiB")
        await live.push(SPEECH)
        await asyncio.to_thread(first.close)
        await live.finish()
        assert len(told(await events_of(live))) == 3


async def test_without_turn_detection_borders_are_not_seen(fleet, open_streams):
    first, second = fleet(max_streams=9), fleet()
    audio = np.concatenate([SPEECH, np.zeros(200 * BLOCK, np.float32), speech(20, 21), np.zeros(8 * BLOCK, np.float32)])
    async with open_streams(first, second) as streams:
        events = await play(streams, closing(first, BLOCKS + 190), audio, endpoint_silence_ms=0)
    (only,) = told(events)
    assert only[1] == " ".join(f"w{i}" for i in range(1, 22)) and len(only[2]) == 21
    assert second.batch.starts[-1]["endpoint_longest_s"] == 30
    assert "warm_up_chunks" in second.batch.starts[-1]


async def test_silence_has_no_segments_of_its_own(fleet, open_streams):
    audio = np.concatenate([speech(1, 2), np.zeros(200 * BLOCK, np.float32), speech(3)])
    async with open_streams(fleet()) as streams:
        events = await play(streams, None, audio)
    assert [(segment, text) for segment, text, *_ in told(events)] == [(0, "w1 w2"), (1, "w3")]
