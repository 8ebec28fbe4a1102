"""The waiting of a session's tasks: signals, room, results, timeouts. Everything else is in test_session.py."""

import asyncio
import math
import time
from dataclasses import replace

import pytest

from client.tests.helpers.fakes import outputs
from penstock_client import ConnectionLostError, ReplyTimeoutError
from penstock_client.protocol import END_REQUEST, Request
from penstock_client.replies import parse_reply
from penstock_client.transport.async_channel import AsyncChannel, AsyncSignal
from penstock_client.transport.session import MAX_UNANSWERED_REQUESTS, MAX_UNANSWERED_SAMPLES

FIRST = Request(b"", is_start=True, is_end=False)
NEXT = Request(b"", is_start=False, is_end=False)
FULL = [FIRST] + [NEXT] * (MAX_UNANSWERED_REQUESTS - 1)
RESULT = parse_reply("s", outputs(0, 0, False).get)[0]


def connected_channel(timeout_s=60.0):
    channel = AsyncChannel("s", "host:1", timeout_s)
    with channel.update() as session:
        session.connected()
    return channel


def deliver(channel, **changes):
    with channel.update() as session:
        session.deliver(replace(RESULT, **changes))


async def pending(coroutine):
    """A task that waits in the coroutine."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


def test_signal_wakes_current_waiters_only():
    async def scenario():
        signal = AsyncSignal()
        signal.give()
        waiting = [await pending(signal.wait(math.inf)) for _ in range(2)]
        signal.give()
        late = await pending(signal.wait(math.inf))
        await asyncio.gather(*waiting)
        late.cancel()

    asyncio.run(scenario())


def test_wait_returns_after_its_limit():
    began_s = time.monotonic()
    asyncio.run(AsyncSignal().wait(0.03))
    assert time.monotonic() - began_s >= 0.03


@pytest.mark.parametrize("limit_s", [0.01, math.inf])
def test_a_finished_wait_leaves_nothing(limit_s):
    async def scenario():
        signal = AsyncSignal()
        task = asyncio.create_task(signal.wait(limit_s))
        await asyncio.sleep(0)
        if limit_s == math.inf:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == (limit_s == math.inf)
        assert signal._waiting == []
        signal.give()

    asyncio.run(scenario())


def test_is_complete_only_once_the_last_result_is_taken():
    async def scenario():
        channel = connected_channel()
        await channel.send(FIRST)
        deliver(channel)
        assert await channel.receive(0)
        await channel.send(END_REQUEST)
        deliver(channel, is_final=True)
        assert not channel.is_complete
        assert await channel.receive(0)
        assert channel.is_complete
        assert await channel.receive(None) is None

    asyncio.run(scenario())


def test_silence_fails_the_stream_for_good():
    async def scenario():
        channel = connected_channel(timeout_s=0.1)
        await channel.send(FIRST)
        began_s = time.monotonic()
        for _ in range(2):
            with pytest.raises(ReplyTimeoutError, match=r"stream 's': no reply from the server at host:1 for 0\.1 s"):
                await channel.receive(None)
        assert time.monotonic() - began_s >= 0.1
        with pytest.raises(ReplyTimeoutError):
            await channel.send(NEXT)

    asyncio.run(scenario())


def test_a_pending_receive_times_out_after_a_later_request():
    """Nothing is unanswered when the wait begins: the timeout counts from the request."""

    async def scenario():
        channel = connected_channel(timeout_s=0.1)
        taking = await pending(channel.receive(None))
        await channel.send(FIRST)
        with pytest.raises(ReplyTimeoutError):
            await taking

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fill, last",
    [(FULL, NEXT), ([Request(bytes(4 * MAX_UNANSWERED_SAMPLES), True, False)], Request(bytes(4), False, False))],
    ids=["requests", "samples"],
)
def test_sending_waits_for_room_except_for_the_last_request(fill, last):
    async def scenario():
        channel = connected_channel()
        for full in fill:
            await channel.send(full)
        waiting = await pending(channel.send(last))
        await channel.send(END_REQUEST)
        for _ in range(2):
            deliver(channel)
        await waiting

    asyncio.run(scenario())


def test_failure_wakes_a_waiting_sender():
    async def scenario():
        channel = connected_channel()
        for request in FULL:
            await channel.send(request)
        waiting = await pending(channel.send(NEXT))
        with channel.update() as session:
            session.fail(ConnectionLostError("s", "gone"))
        with pytest.raises(ConnectionLostError, match="gone"):
            await waiting

    asyncio.run(scenario())
