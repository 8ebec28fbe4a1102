"""The core of both fronts on its own: no threads, no event loop, a clock of the test's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.tests.fakes import outputs
from penstock_client import (
    ConnectionLostError,
    ReplyTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    StreamError,
    StreamNotOpenError,
)
from penstock_client.exchange import Exchange
from penstock_client.protocol import END_PIECE, PieceCutter, parse_reply
from penstock_client.transport import FAREWELL_S

RESULT = parse_reply("s", outputs(0, 0, False).get)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def exchange(clock):
    exchange = Exchange("s", "host:1", 5.0, clock)
    exchange.note_connection()
    return exchange


def announce(exchange, pieces):
    for piece in pieces:
        exchange.announce(piece, exchange.now_s())
    return pieces


@given(st.lists(st.sampled_from(["announce", "depart", "reply", "take"]), max_size=60))
def test_each_piece_departs_once_and_each_reply_is_handed_out_once(steps):
    exchange = Exchange("s", "host:1", 5.0)
    cutter = PieceCutter("s")
    sent, departed, replies, taken = [], [], 0, 0
    for step in steps:
        if step == "announce":
            sent += announce(exchange, cutter.cut(np.full(len(sent), 0.5)))
        elif step == "depart":
            departed += [piece for piece in [exchange.next_piece()] if piece]
        elif step == "reply" and replies < len(departed):
            exchange.deliver(RESULT)
            replies += 1
        elif step == "take":
            taken += exchange.take() is not None
    assert departed == sent[: len(departed)]
    assert taken <= replies and exchange.has_outgoing == (len(departed) < len(sent))


@pytest.mark.parametrize("departed, goes_out", [(0, []), (1, [END_PIECE]), (2, [END_PIECE])])
def test_leaving_drops_what_has_not_departed_and_ends_what_the_server_may_hold(exchange, departed, goes_out):
    announce(exchange, PieceCutter("s").cut(np.zeros(960_000)))
    for _ in range(departed):
        exchange.next_piece()
    exchange.leave()
    exchange.leave()
    assert [piece for piece in iter(exchange.next_piece, None)] == goes_out
    assert exchange.is_over
    with pytest.raises(StreamClosedError):
        exchange.take()


def test_leaving_a_stream_whose_end_has_not_departed_ends_it_still(exchange):
    cutter = PieceCutter("s")
    announce(exchange, cutter.cut([0.0]))
    exchange.next_piece()
    announce(exchange, cutter.cut([0.5], is_last=True))
    exchange.leave()
    assert exchange.next_piece() is END_PIECE
    assert exchange.next_piece() is None


@pytest.mark.parametrize("failure, ends", [(StreamError("s", "no"), True), (StreamNotOpenError("s", "no"), False)])
def test_a_refused_stream_is_ended_unless_the_server_does_not_know_it(exchange, failure, ends):
    announce(exchange, PieceCutter("s").cut([0.0]))
    exchange.next_piece()
    exchange.fail(failure)
    exchange.leave()
    assert exchange.has_outgoing == ends
    with pytest.raises(type(failure)):
        exchange.take()


def test_without_a_connection_nothing_can_have_been_heard(clock):
    exchange = Exchange("s", "host:1", 5.0, clock)
    announce(exchange, PieceCutter("s").cut([0.0]))
    exchange.next_piece()
    assert exchange.is_untouched
    exchange.leave()
    assert not exchange.has_outgoing and exchange.is_over


def test_a_piece_that_goes_out_after_its_user_has_left_is_followed_by_the_stream_s_end(clock):
    """Over HTTP a piece departs before there is a connection to carry it."""
    exchange = Exchange("s", "host:1", 5.0, clock)
    announce(exchange, PieceCutter("s").cut([0.0]))
    exchange.next_piece()
    exchange.leave()
    exchange.note_connection()
    assert not exchange.is_untouched and not exchange.is_over
    assert exchange.next_piece() is END_PIECE
    exchange.note_connection()  # of the end's own request
    assert exchange.is_over


def test_patience_counts_from_the_connection(clock):
    exchange = Exchange("s", "host:1", 5.0, clock)
    announce(exchange, PieceCutter("s").cut([0.0]))
    clock.now_s += 4.0
    exchange.note_connection()
    assert exchange.seconds_to_wait(200.0) == 5.0


def test_a_farewell_counts_from_leaving(clock):
    exchange = Exchange("s", "host:1", 5.0, clock)
    assert exchange.farewell_s == 0.0
    exchange.note_connection()
    announce(exchange, PieceCutter("s").cut([0.0]))
    exchange.next_piece()
    assert exchange.farewell_s == FAREWELL_S
    exchange.leave()
    clock.now_s += 0.75 * FAREWELL_S
    assert exchange.farewell_s == 0.25 * FAREWELL_S
    exchange.leave()
    clock.now_s += 1.0
    assert exchange.farewell_s == 0.0


@pytest.mark.parametrize(
    "is_connected, kind, text",
    [(False, ServerUnreachableError, "no connection for 5 s"), (True, ReplyTimeoutError, "no reply .* for 5 s")],
)
def test_silence_is_told_from_the_lack_of_a_connection(clock, is_connected, kind, text):
    exchange = Exchange("s", "host:1", 5.0, clock)
    if is_connected:
        exchange.note_connection()
    announce(exchange, PieceCutter("s").cut([0.0]))
    clock.now_s += 4.0
    assert exchange.seconds_to_wait(103.0) == 0.0
    assert exchange.seconds_to_wait(200.0) == 1.0
    clock.now_s += 1.0
    assert exchange.seconds_to_wait(200.0) == 0.0
    with pytest.raises(kind, match=text):
        exchange.take()


@pytest.mark.parametrize("replies, kind", [(0, ServerUnreachableError), (1, ConnectionLostError)])
def test_a_lost_network_is_named_by_what_came_before(exchange, replies, kind):
    announce(exchange, PieceCutter("s").cut(np.zeros(960_000)))
    for _ in range(replies):
        exchange.deliver(RESULT)
    exchange.lose("cut")
    for _ in range(replies):
        assert exchange.take()
    with pytest.raises(kind, match="host:1: cut"):
        exchange.take()
