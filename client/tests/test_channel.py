import asyncio
import threading
import time

import pytest

from client.tests.helpers.fakes import outputs
from penstock_client import ClientError, ConnectionLostError, ProtocolError, ReplyTimeoutError
from penstock_client.protocol import END_REQUEST, Request, parse_reply
from penstock_client.transport.async_channel import AsyncChannel
from penstock_client.transport.channel import Channel
from penstock_client.transport.session import MAX_UNANSWERED_REQUESTS, MAX_UNANSWERED_SAMPLES

FIRST = Request(b"", is_start=True, is_end=False)
NEXT = Request(b"", is_start=False, is_end=False)
RESULT = parse_reply("s", outputs(0, 0, False).get)[0]


def connected_channel(timeout_s=5.0):
    return connect(Channel("s", "host:1", timeout_s))


def connect(channel):
    with channel.update() as session:
        session.connected()
    return channel


def deliver(channel):
    with channel.update() as session:
        session.deliver(RESULT)


def fail(channel, error):
    with channel.update() as session:
        session.fail(error)


def blocks(call, *args, for_s=0.1):
    """The thread that is still in the call after `for_s`. Fails if the call has returned."""
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    thread.join(for_s)
    assert thread.is_alive()
    return thread


def test_is_complete_only_once_the_last_result_is_taken():
    channel = connected_channel()
    channel.send(FIRST)
    deliver(channel)
    assert channel.receive(0)
    assert not channel.is_complete
    channel.send(END_REQUEST)
    deliver(channel)
    assert not channel.is_complete
    assert channel.receive(0)
    assert channel.is_complete
    assert channel.receive(None) is None


def test_silence_fails_the_stream_for_good():
    channel = connected_channel(timeout_s=0.1)
    channel.send(FIRST)
    start_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(ReplyTimeoutError, match=r"stream 's': no reply from the server at host:1 for 0\.1 s"):
            channel.receive(None)
    assert time.monotonic() - start_s >= 0.1
    with pytest.raises(ReplyTimeoutError):
        channel.send(NEXT)


def test_silence_without_an_unanswered_request_is_no_failure():
    channel = connected_channel(timeout_s=0.05)
    channel.send(FIRST)
    deliver(channel)
    assert channel.receive(0)
    assert channel.receive(0.15) is None
    channel.send(NEXT)
    assert channel.receive(0) is None


@pytest.mark.parametrize("api", ["threads", "asyncio"])
def test_a_pending_receive_times_out_after_a_later_request(api):
    """Nothing is unanswered when the wait begins: the timeout counts from the request."""

    def taken(channel):
        with pytest.raises(ReplyTimeoutError):
            channel.receive(None)

    async def scenario():
        channel = AsyncChannel("s", "host:1", 0.1)
        connect(channel)
        taking = asyncio.create_task(channel.receive(None))
        await asyncio.sleep(0.02)
        await channel.send(FIRST)
        with pytest.raises(ReplyTimeoutError):
            await asyncio.wait_for(taking, 2)

    if api == "asyncio":
        asyncio.run(scenario())
    else:
        channel = connected_channel(timeout_s=0.1)
        waiting = blocks(taken, channel, for_s=0.02)
        channel.send(FIRST)
        waiting.join(2)
        assert not waiting.is_alive()


def test_each_reply_restarts_the_timeout():
    channel = connected_channel(timeout_s=0.6)
    for request in (FIRST, NEXT, NEXT, NEXT):
        channel.send(request)
    for _ in range(4):
        threading.Timer(0.2, deliver, [channel]).start()
        assert channel.receive(None) == same_text(RESULT)


def same_text(result):
    """Equal to a result with any round trip."""

    class Equal:
        def __eq__(self, other):
            return (other.text, other.segment) == (result.text, result.segment) and other.round_trip_s > 0.1

    return Equal()


def test_results_come_before_the_failure_and_none_after_it():
    channel = connected_channel()
    for request in (FIRST, NEXT, NEXT):
        channel.send(request)
    deliver(channel)
    fail(channel, ConnectionLostError("s", "first"))
    fail(channel, ConnectionLostError("s", "second"))
    deliver(channel)
    assert channel.receive(0)
    with pytest.raises(ConnectionLostError, match="first"):
        channel.receive(0)


def test_a_complete_stream_does_not_fail():
    channel = connected_channel()
    channel.send(END_REQUEST)
    deliver(channel)
    fail(channel, ConnectionLostError("s", "the connection has ended"))
    assert channel.receive(None)
    assert channel.receive(None) is None


def test_a_reply_without_a_request_is_a_failure():
    channel = connected_channel()
    deliver(channel)
    with pytest.raises(ProtocolError):
        channel.receive(0)


@pytest.mark.parametrize(
    "fill, last",
    [
        ([FIRST] + [NEXT] * (MAX_UNANSWERED_REQUESTS - 1), NEXT),
        ([Request(bytes(4 * MAX_UNANSWERED_SAMPLES), True, False)], Request(bytes(4), False, False)),
    ],
    ids=["requests", "samples"],
)
def test_sending_blocks_without_room_except_for_the_last_request(fill, last):
    channel = connected_channel()
    for full in fill:
        channel.send(full)
    waiting = blocks(channel.send, last)
    channel.send(END_REQUEST)
    for _ in range(2):
        deliver(channel)
    waiting.join(1)
    assert not waiting.is_alive()


def test_failure_wakes_a_blocked_sender():
    channel = connected_channel()
    for request in [FIRST] + [NEXT] * (MAX_UNANSWERED_REQUESTS - 1):
        channel.send(request)
    raised = []

    def send():
        try:
            channel.send(NEXT)
        except ClientError as error:
            raised.append(error)

    waiting = blocks(send)
    failure = ConnectionLostError("s", "gone")
    fail(channel, failure)
    waiting.join(1)
    assert raised == [failure]
