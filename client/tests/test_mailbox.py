import asyncio
import threading
import time

import pytest

from client.tests.fakes import outputs
from penstock_client import ClientError, ProtocolError, ReplyTimeoutError
from penstock_client.async_mailbox import AsyncMailbox
from penstock_client.exchange import MAX_UNANSWERED_PIECES, MAX_UNANSWERED_SAMPLES
from penstock_client.mailbox import Mailbox
from penstock_client.protocol import END_PIECE, Piece, parse_reply

FIRST = Piece(b"", is_first=True, is_last=False)
NEXT = Piece(b"", is_first=False, is_last=False)
RESULT = parse_reply("s", outputs(0, 0, False).get)


def mailbox(timeout_s=5.0):
    box = Mailbox("s", "host:1", timeout_s)
    box.note_connection()
    return box


def blocks(call, *args, for_s=0.1):
    """The thread that is still in the call after `for_s`; fails where it has returned."""
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    thread.join(for_s)
    assert thread.is_alive()
    return thread


def test_is_complete_only_once_the_last_result_is_taken():
    box = mailbox()
    box.announce(FIRST)
    box.deliver(RESULT)
    assert box.take(0)
    assert not box.is_complete
    box.announce(END_PIECE)
    box.deliver(RESULT)
    assert not box.is_complete
    assert box.take(0)
    assert box.is_complete
    assert box.take(None) is None


def test_silence_is_a_failure_that_stays():
    box = mailbox(timeout_s=0.1)
    box.announce(FIRST)
    start_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(ReplyTimeoutError, match=r"stream 's': no reply from the server at host:1 for 0\.1 s"):
            box.take(None)
    assert 0.1 <= time.monotonic() - start_s < 5
    with pytest.raises(ReplyTimeoutError):
        box.announce(NEXT)


def test_silence_while_nothing_is_unanswered_is_none():
    box = mailbox(timeout_s=0.05)
    box.announce(FIRST)
    box.deliver(RESULT)
    assert box.take(0)
    assert box.take(0.15) is None
    box.announce(NEXT)
    assert box.take(0) is None


@pytest.mark.parametrize("front", ["threads", "asyncio"])
def test_who_waits_already_notices_the_silence_after_a_piece(front):
    """Nothing is unanswered when the wait begins: its limit comes with the piece."""

    def taken(box):
        with pytest.raises(ReplyTimeoutError):
            box.take(None)

    async def scenario():
        box = AsyncMailbox("s", "host:1", 0.1)
        box.note_connection()
        taking = asyncio.create_task(box.take(None))
        await asyncio.sleep(0.02)
        await box.announce(FIRST)
        with pytest.raises(ReplyTimeoutError):
            await asyncio.wait_for(taking, 2)

    if front == "asyncio":
        asyncio.run(scenario())
    else:
        box = mailbox(timeout_s=0.1)
        waiting = blocks(taken, box, for_s=0.02)
        box.announce(FIRST)
        waiting.join(2)
        assert not waiting.is_alive()


def test_each_reply_renews_the_patience():
    box = mailbox(timeout_s=0.6)
    for piece in (FIRST, NEXT, NEXT, NEXT):
        box.announce(piece)
    for _ in range(4):
        threading.Timer(0.2, box.deliver, [RESULT]).start()
        assert box.take(None) == box_result(RESULT)


def box_result(result):
    """Equal to a result whatever its round trip."""

    class Equal:
        def __eq__(self, other):
            return (other.text, other.segment) == (result.text, result.segment) and other.round_trip_s > 0.1

    return Equal()


def test_results_come_before_the_failure_and_none_after_it():
    box = mailbox()
    for piece in (FIRST, NEXT, NEXT):
        box.announce(piece)
    box.deliver(RESULT)
    box.fail(ClientError("first"))
    box.fail(ClientError("second"))
    box.deliver(RESULT)
    assert box.take(0)
    with pytest.raises(ClientError, match="first"):
        box.take(0)


def test_a_complete_stream_does_not_fail():
    box = mailbox()
    box.announce(END_PIECE)
    box.deliver(RESULT)
    box.fail(ClientError("the connection has ended"))
    assert box.take(None)
    assert box.take(None) is None


def test_a_reply_to_nothing_is_a_failure():
    box = mailbox()
    box.deliver(RESULT)
    with pytest.raises(ProtocolError):
        box.take(0)


@pytest.mark.parametrize(
    "fill, piece",
    [
        ([FIRST] + [NEXT] * (MAX_UNANSWERED_PIECES - 1), NEXT),
        ([Piece(bytes(4 * MAX_UNANSWERED_SAMPLES), True, False)], Piece(bytes(4), False, False)),
    ],
    ids=["pieces", "samples"],
)
def test_sending_waits_for_room_but_the_last_piece_does_not(fill, piece):
    box = mailbox()
    for full in fill:
        box.announce(full)
    waiting = blocks(box.announce, piece)
    box.announce(END_PIECE)
    for _ in range(2):
        box.deliver(RESULT)
    waiting.join(1)
    assert not waiting.is_alive()


def test_failure_wakes_a_sender_that_waits_for_room():
    box = mailbox()
    for piece in [FIRST] + [NEXT] * (MAX_UNANSWERED_PIECES - 1):
        box.announce(piece)
    raised = []

    def send():
        try:
            box.announce(NEXT)
        except ClientError as error:
            raised.append(error)

    waiting = blocks(send)
    failure = ClientError("gone")
    box.fail(failure)
    waiting.join(1)
    assert raised == [failure]
