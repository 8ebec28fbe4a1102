"""The events of a stream's results."""

import pytest

from penstock_client import StreamResult
from penstock_common.results import Alternative, Word
from penstock_gateway.stream import events
from penstock_gateway.stream.events import Segments
from penstock_gateway.stream.options import LiveStreamOptions, segments_of

ONE, TWO = Word("one", 0, 300, 0.5), Word("two", 400, 600)


def result(text, words=(), is_final=False, **fields):
    return StreamResult(0, text, is_final, 1.0, words, (), (), **fields)


def test_partials_have_the_words_so_far_and_finals_begin_a_segment():
    segments = Segments()
    assert segments.add(result("one tw", (ONE,), stable_chars=3)) == events.Partial(0, "one tw", 3, (ONE,), 1.0)
    alternative = Alternative("one two", -1.5, (ONE, TWO))
    final = segments.add(result("one two", (TWO,), True, alternatives=(alternative,), end_s=0.8))
    assert final == events.Final(0, "one two", (ONE, TWO), (alternative,), 1.0, 0.8, is_last=False, forced=False)
    forced = segments.add(result("", is_final=True, answers_finalize=True, end_s=1.0))
    assert forced == events.Final(1, "", (), (), 1.0, 1.0, is_last=False, forced=True)
    last = segments.add(result("", is_final=True, is_last=True))
    assert last.is_last and last.segment == 2


def test_a_partial_without_a_change_is_no_event():
    segments = Segments()
    assert segments.add(result("a")).text == "a"
    assert segments.add(result("a")) is None


def test_segments_of_the_client_have_those_of_the_server_as_parts():
    segments = Segments(joins=True)
    assert segments.add(result("one", stable_chars=3)).text == "one"
    border = segments.add(result("one", (ONE,), True, is_endpoint=True))
    assert (border.text, border.stable_chars, len(border.words)) == ("one", 3, 1)
    assert segments.add(result("", is_final=True, is_endpoint=True)) is None
    partial = segments.add(result("tw", stable_chars=1))
    assert (partial.segment, partial.text, partial.stable_chars) == (0, "one tw", 5)
    alternative = Alternative("two", -1.5, (TWO,))
    final = segments.add(result("two", (TWO,), True, answers_finalize=True, alternatives=(alternative,)))
    assert (final.segment, final.text, [word.text for word in final.words]) == (0, "one two", ["one", "two"])
    assert (final.alternatives[0].text, len(final.alternatives[0].words)) == ("one two", 2)
    segments.add(result("今日は。", is_final=True, is_endpoint=True))
    assert segments.add(result("GPU", is_final=True, is_last=True)).text == "今日は。GPU"


@pytest.mark.parametrize(
    ("options", "joins"),
    [
        ({}, True),
        ({"extra": {"endpoint_tokens": "off"}}, True),
        ({"extra": {"endpoint_tokens": "on"}}, False),
        ({"endpoint_silence_ms": 800}, False),
    ],
)
def test_ends_by_end_tokens_are_the_clients_where_it_ordered_endpoints(options, joins):
    segments = segments_of(LiveStreamOptions(**{"endpoint_silence_ms": 0, **options}))
    event = segments.add(result("one", (ONE,), True, is_endpoint=True))
    assert isinstance(event, events.Partial if joins else events.Final)


def test_a_segment_of_silence_alone_is_none_unless_the_client_ended_it():
    segments = Segments(hides_silence=True)
    assert segments.add(result("", is_final=True, is_endpoint=True)) is None
    assert segments.add(result("", is_final=True, answers_finalize=True)).segment == 0
    assert segments.add(result("one", (ONE,), True, is_endpoint=True)).segment == 1
    assert Segments().add(result("", is_final=True, is_endpoint=True)).segment == 0
