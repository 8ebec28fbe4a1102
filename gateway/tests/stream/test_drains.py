"""Live streams leave a replica that drains."""

import contextlib
import time

import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import FleetServer, speech
from gateway.tests.helpers.stream_calls import opened
from gateway.tests.stream.test_watch import ended, mute
from penstock_client import limits
from penstock_gateway.errors import GatewayCode


@pytest.fixture
async def drained(open_streams):
    """Two streams on a replica that drains, the second within a segment, beside an empty one."""
    with contextlib.ExitStack() as stack:
        first, second = FleetServer(max_streams=9), FleetServer()
        stack.callback(second.close)
        stack.callback(first.close)
        async with open_streams(first, second) as streams:
            (other,) = streams._groups[0].replicas[1:]
            other.note_full(3600.0)
            live = [await opened(streams) for _ in range(2)]
            other.note_full(0.0)
            await live[1].push(speech(1, 2, 3, 4))
            yield streams, first, second, live


async def text_of(stream):
    return [event.text async for event in stream.events()][-1]


async def test_streams_leave_at_a_border_and_within_a_segment(drained):
    streams, first, second, (silent, speaking) = drained
    await until(lambda: speaking._upstream.has_words)
    first.batch.is_draining = True
    (group,) = streams._groups
    await group.probe()
    assert group.candidates() == [group.replicas[1]]
    for stream in (silent, speaking, silent, speaking):  # once at a time
        await stream.watch(time.monotonic())
    await until(lambda: not first.batch.streams and {silent._replica, speaking._replica} == {group.replicas[1]})
    assert len(second.batch.streams) == 2
    assert [replica.live for replica in group.replicas] == [0, 2]
    for stream in (silent, speaking):
        await stream.push(speech(5))
        await stream.finish()
    assert await text_of(silent) == "w5" and await text_of(speaking) == "w1 w2 w3 w4 w5"


async def test_a_replica_that_is_lost_while_its_stream_leaves(drained):
    streams, first, second, (_, speaking) = drained
    await until(lambda: speaking._upstream.has_words)
    first.batch.is_draining = True
    (group,) = streams._groups
    await group.probe()
    second.may_answer.clear()
    await speaking.watch(time.monotonic())
    await until(lambda: group.replicas[1].live)
    first.close()
    await until(lambda: speaking._upstream.is_without_server)
    second.may_answer.set()
    await speaking.moved()
    await speaking.push(speech(5))
    await speaking.finish()
    assert await text_of(speaking) == "w1 w2 w3 w4 w5"
    await until(lambda: group.replicas[0].live == 0)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_few_streams_leave_at_a_time(open_streams, is_lost):
    """Streams that wait are rescued if their replica is lost meanwhile."""
    with (
        contextlib.closing(FleetServer(max_streams=9)) as first,
        contextlib.closing(FleetServer(max_streams=9)) as second,
    ):
        async with open_streams(first, second) as streams:
            (group,) = streams._groups
            old, new = group.replicas
            new.note_full(3600.0)
            live = [await opened(streams) for _ in range(6)]
            new.note_full(0.0)
            first.batch.is_draining = True
            await group.probe()
            second.may_answer.clear()
            for stream in live:
                await stream.watch(time.monotonic())
            await until(lambda: new.live == 2)
            assert old.live == 6 and all(stream._moving for stream in live)
            if is_lost:
                first.close()
                await until(lambda: all(stream._upstream.is_without_server for stream in live))
            second.may_answer.set()
            await until(lambda: (old.live, new.live) == (0, 6))
            for stream in live:
                await stream.push(speech(5))
                await stream.finish()
                assert await text_of(stream) == "w5"


async def test_where_no_other_replica_has_room_streams_stay(drained):
    streams, first, second, (silent, _) = drained
    second.batch.recognizer.max_streams = 0
    first.batch.is_draining = True
    (group,) = streams._groups
    await group.probe()
    await silent.watch(time.monotonic())
    await silent.moved()
    await silent.push(speech(5))
    await silent.finish()
    assert await text_of(silent) == "w5"
    assert len(first.batch.streams) == 1


async def test_a_replica_that_started_again_takes_streams(drained):
    streams, first, _, _ = drained
    (group,) = streams._groups
    first.batch.is_draining = True
    await group.probe()
    first.batch.is_draining = False
    await group.probe()
    assert len(group.candidates()) == 2


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_parked_stream_of_a_replica_that_drains(drained, monkeypatch, metrics, has_room):
    """The stream goes on at the other one when audio comes; where that is full, its text so far and the code follow."""
    monkeypatch.setattr(limits, "MOVE_S", 0.2)
    streams, first, second, (other, parked) = drained
    await until(lambda: parked._upstream.is_answered)
    await mute(parked)
    await streams._groups[0].probe()
    first.batch.is_draining = True
    await streams._groups[0].probe()
    await parked.watch(time.monotonic())
    assert not parked._moving
    await other.cancel()
    await until(lambda: not first.batch.streams)
    first.close()
    if not has_room:
        second.batch.recognizer.max_streams = 0
    await parked.push(speech(5, 6))  # a chunk: less than one asks for no slot
    if has_room:
        await until(lambda: parked._replica is streams._groups[0].replicas[1])
        await parked.finish()
        assert (await text_of(parked), streams._groups[0].replicas[1].live) == ("w5 w6", 0)
        assert metrics.registry.get_sample_value("penstock_gateway_streams_moved_total", {"reason": "WOKEN"}) == 1
    else:
        assert await ended(parked) == ("w1 w2 w3 w4", GatewayCode.STREAMS_EXHAUSTED)
