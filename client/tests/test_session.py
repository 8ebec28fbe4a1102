"""The session on its own: no threads, no event loop, a fake clock."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.tests.helpers.fakes import outputs
from penstock_client import (
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    StreamError,
    StreamNotOpenError,
)
from penstock_client.protocol import END_REQUEST, POLL_REQUEST, RequestSplitter
from penstock_client.replies import parse_reply
from penstock_client.transport.session import CLOSE_TIMEOUT_S, Session

RESULT = parse_reply("s", outputs(0, 0, False).get)[0]
RESULT_OF_ALL = replace(RESULT, is_final=True, audio_processed_s=60.0)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def session(clock):
    session = Session("s", "host:1", 5.0, clock)
    session.connected()
    return session


def enqueue(session, requests):
    for request in requests:
        session.enqueue(request, session.now_s())
    return requests


@given(st.lists(st.sampled_from(["enqueue", "send", "reply", "take"]), max_size=60))
def test_each_request_is_sent_once_and_each_result_returned_once(steps):
    session = Session("s", "host:1", 5.0)
    splitter = RequestSplitter("s")
    enqueued, sent, replies, taken = [], [], 0, 0
    for step in steps:
        if step == "enqueue":
            enqueued += enqueue(session, splitter.split(np.full(len(enqueued), 0.5)))
        elif step == "send":
            sent += [request for request in [session.next_request()] if request]
        elif step == "reply" and replies < len(sent):
            session.deliver(RESULT)
            replies += 1
        elif step == "take":
            taken += session.next_result() is not None
    assert sent == enqueued[: len(sent)]
    assert taken <= replies and session.has_request == (len(sent) < len(enqueued))


@pytest.mark.parametrize("sent, remaining", [(0, []), (1, [END_REQUEST]), (2, [END_REQUEST])])
def test_cancel_drops_unsent_requests_and_ends_a_stream_that_the_server_may_hold(session, sent, remaining):
    enqueue(session, RequestSplitter("s").split(np.zeros(960_000)))
    for _ in range(sent):
        session.next_request()
    session.cancel()
    session.cancel()
    assert [request for request in iter(session.next_request, None)] == remaining
    for _ in range(sent + len(remaining)):
        assert not session.is_over
        session.deliver(RESULT_OF_ALL)
    assert session.is_over
    with pytest.raises(StreamClosedError):
        session.next_result()


def test_cancel_ends_a_stream_whose_end_is_enqueued_but_not_sent(session):
    splitter = RequestSplitter("s")
    enqueue(session, splitter.split([0.0]))
    session.next_request()
    enqueue(session, splitter.split([0.5], is_end=True))
    session.cancel()
    assert session.next_request() is END_REQUEST
    assert session.next_request() is None


@pytest.mark.parametrize("failure, ends", [(StreamError("s", "no"), True), (StreamNotOpenError("s", "no"), False)])
def test_a_rejected_stream_is_ended_unless_it_is_not_open_on_the_server(session, failure, ends):
    enqueue(session, RequestSplitter("s").split([0.0]))
    session.next_request()
    session.fail(failure)
    session.cancel()
    assert session.has_request == ends
    with pytest.raises(type(failure)):
        session.next_result()


def test_without_a_connection_nothing_can_have_been_received(clock):
    session = Session("s", "host:1", 5.0, clock)
    enqueue(session, RequestSplitter("s").split([0.0]))
    session.next_request()
    assert session.is_unsent
    session.cancel()
    assert not session.has_request and session.is_over


def test_a_request_sent_after_cancel_is_followed_by_the_end_of_the_stream(clock):
    """Over HTTP a request is taken before there is a connection."""
    session = Session("s", "host:1", 5.0, clock)
    enqueue(session, RequestSplitter("s").split([0.0]))
    session.next_request()
    session.cancel()
    session.connected()
    assert not session.is_unsent and not session.is_over
    assert session.next_request() is END_REQUEST
    session.connected()  # for the last request itself
    assert not session.has_request
    session.deliver(RESULT)
    session.deliver(RESULT_OF_ALL)
    assert session.is_over


def test_the_timeout_counts_from_the_connection(clock):
    session = Session("s", "host:1", 5.0, clock)
    enqueue(session, RequestSplitter("s").split([0.0]))
    clock.now_s += 4.0
    session.connected()
    assert session.seconds_to_wait(200.0) == 5.0


def test_the_close_timeout_counts_from_cancel(clock):
    session = Session("s", "host:1", 5.0, clock)
    assert session.close_timeout_s == 0.0
    session.connected()
    enqueue(session, RequestSplitter("s").split([0.0]))
    session.next_request()
    assert session.close_timeout_s == CLOSE_TIMEOUT_S
    session.cancel()
    clock.now_s += 0.75 * CLOSE_TIMEOUT_S
    assert session.close_timeout_s == 0.25 * CLOSE_TIMEOUT_S
    session.cancel()
    clock.now_s += 1.0
    assert session.close_timeout_s == 0.0


@pytest.mark.parametrize(
    "is_connected, kind, text",
    [(False, ServerUnreachableError, "no connection for 5 s"), (True, ReplyTimeoutError, "no reply .* for 5 s")],
)
def test_silence_and_a_missing_connection_are_different_errors(clock, is_connected, kind, text):
    session = Session("s", "host:1", 5.0, clock)
    if is_connected:
        session.connected()
    enqueue(session, RequestSplitter("s").split([0.0]))
    clock.now_s += 4.0
    assert session.seconds_to_wait(103.0) == 0.0
    assert session.seconds_to_wait(200.0) == 1.0
    clock.now_s += 1.0
    assert session.seconds_to_wait(200.0) == 0.0
    with pytest.raises(kind, match=text):
        session.next_result()


@pytest.mark.parametrize("replies, kind", [(0, ServerUnreachableError), (1, ConnectionLostError)])
def test_a_lost_connection_is_another_error_than_an_unreachable_server(session, replies, kind):
    enqueue(session, RequestSplitter("s").split(np.zeros(960_000)))
    for _ in range(replies):
        session.deliver(RESULT)
    session.connection_lost("cut")
    for _ in range(replies):
        assert session.next_result()
    with pytest.raises(kind, match="host:1: cut"):
        session.next_result()


def test_a_reply_may_end_a_segment_and_begin_the_next(session):
    enqueue(session, RequestSplitter("s").split(np.zeros(8000), is_end=True))
    session.deliver(replace(RESULT, is_final=True), replace(RESULT_OF_ALL, segment=4, audio_processed_s=0.5))
    first, is_complete, second = session.next_result(), session.is_complete, session.next_result()
    assert (first.segment, is_complete, second.segment, session.is_complete) == (3, False, 4, True)


@pytest.mark.parametrize(
    "wrong",
    [{"segment": 2}, {"segment": 4}, {"segment": 2**31 - 1}, {"audio_processed_s": 1e30}, {"audio_processed_s": 2.0}],
    ids=str,
)
def test_a_result_that_cannot_follow_is_not_told(session, wrong):
    """A stream's segments are numbered one after another, from any, and cover audio that was sent."""
    enqueue(session, RequestSplitter("s").split(np.zeros(8000)))
    enqueue(session, RequestSplitter("s").split(np.zeros(0)))
    session.deliver(RESULT)
    session.deliver(replace(RESULT, **wrong))
    assert session.next_result().segment == 3
    with pytest.raises(ProtocolError, match=r"segment|covers .* s of 0\.5"):
        session.next_result()


def ended(session, samples=8000):
    """A stream whose end was sent."""
    enqueue(session, RequestSplitter("s").split(np.zeros(samples), is_end=True))
    assert session.next_request().is_end and session.next_request() is None


@pytest.mark.parametrize("samples", [8000, 160_001, 4 * 3600 * 16_000 + 1], ids=["0.5 s", "10 s", "4 h"])
def test_a_stream_is_polled_until_its_last_result(session, clock, samples):
    whole_s = np.float32(samples / 16_000).item()
    before_s = 0.999 * whole_s
    moved_s = np.nextafter(np.float32(whole_s), np.float32(0)).item()  # the sum of two times, rounded
    zeros = np.zeros(samples, np.float32)
    for request in enqueue(session, RequestSplitter("s", max_samples=samples).split(zeros, is_end=True)):
        assert session.next_request() is request
    for reply in (
        [replace(RESULT, audio_processed_s=0.25)],
        [replace(RESULT, is_final=True, audio_processed_s=before_s)],
        [replace(RESULT, segment=4, audio_processed_s=whole_s)],
    ):
        clock.now_s += 1.0
        session.deliver(*reply)
        assert session.next_request() is POLL_REQUEST and session.next_request() is None
        assert not session.is_over
    clock.now_s += 1.0
    session.deliver(
        replace(RESULT, segment=4, is_final=True, audio_processed_s=before_s),
        replace(RESULT, segment=5, is_final=True, audio_processed_s=moved_s),
    )
    results = [session.next_result() for _ in range(5)]
    assert session.is_over and session.is_complete
    assert [result.is_endpoint for result in results] == [False, True, False, True, False]
    assert results[-1].round_trip_s == 4.0  # from the stream's end


def test_a_poll_without_a_reply_fails_the_stream(session, clock):
    ended(session)
    clock.now_s += 4.0
    session.deliver(RESULT)
    session.next_result()
    assert session.seconds_to_wait(200.0) == 5.0
    clock.now_s += 5.0
    assert session.seconds_to_wait(200.0) == 0.0
    with pytest.raises(ReplyTimeoutError):
        session.next_result()


@pytest.mark.parametrize("is_polling", [True, False])
def test_cancel_after_the_end_sends_it_again_where_the_server_has_work_left(session, is_polling):
    ended(session)
    if is_polling:
        session.deliver(RESULT)
        assert session.next_request() is POLL_REQUEST
    session.cancel()
    assert session.has_request == is_polling  # else the reply to the end decides
    if not is_polling:
        assert not session.is_over
        session.deliver(RESULT)
    assert session.next_request() is END_REQUEST
    assert session.next_request() is None and session.is_over
    session.deliver(RESULT)
    assert session.is_over


def test_cancel_after_the_end_of_a_stream_without_work_left_sends_nothing(session):
    ended(session)
    session.cancel()
    session.deliver(RESULT_OF_ALL)
    assert session.is_over and not session.has_request


@pytest.mark.parametrize("replies, ends", [([RESULT], 2), ([RESULT_OF_ALL], 1), ([], 1)])
def test_the_end_of_a_cancelled_stream_is_sent_again_where_it_begins_work(session, replies, ends):
    enqueue(session, RequestSplitter("s").split(np.zeros(8000)))
    session.next_request()
    session.cancel()
    assert session.next_request() is END_REQUEST
    session.deliver(RESULT)
    if replies:
        session.deliver(*replies)
    else:
        session.rejected(StreamError("s", "no"))
    assert [*iter(session.next_request, None)] == [END_REQUEST] * (ends - 1)
    assert session.is_over


def test_a_poll_that_is_rejected_leaves_the_end_to_cancel(session):
    ended(session)
    session.deliver(RESULT)
    session.next_request()
    session.rejected(StreamError("s", "lost", "STREAM_LOST"))
    session.cancel()
    assert session.is_over and not session.has_request  # the server has dropped it
