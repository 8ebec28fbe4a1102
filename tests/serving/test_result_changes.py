"""Rows that tell their client nothing new get no entry in a reply of `asr_batch`."""

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.slots.ticket import POLL, START, Column
from penstock.pipeline.stages.decoder_rows import ResultChanges


def result(text: str, segment: int = 0, is_final: bool = False, words: tuple = (), tokens: tuple = ()) -> StreamResult:
    return StreamResult(segment, text, is_final, 1.0, words, tokens)


def test_only_what_changes_is_new():
    changes = ResultChanges(2)
    word, token = Word("ten", 0, 1), Token(1, 2, 1, 0.0)
    history = [
        (result(""), False),
        (result("te"), True),
        (result("te"), False),
        (result("te", tokens=(token,)), True),
        (result("ten", words=(word,)), True),
        (result("ten"), False),
        (result("ten", is_final=True), True),
        (result("", segment=1), False),
        (result("", segment=1, is_final=True), True),
    ]
    for place, (one, is_new) in enumerate(history):
        assert changes.of_results(1, [one]) == [one] * is_new, place


def ticket_row(slot: int, flags: int = 0) -> np.ndarray:
    row = np.zeros((1, len(Column)), np.int64)
    row[0, Column.SLOT], row[0, Column.FLAGS] = slot, flags
    return row


def test_a_slot_forgets_its_last_stream():
    changes, yes = ResultChanges(2), result("yes")
    for flags, answers, found in (
        (START, {0: yes}, {0: [yes]}),
        (0, {0: yes}, {0: []}),
        (START, {}, {}),  # a start without audio has no answer
        (0, {0: yes}, {0: [yes]}),
        (START, {0: yes}, {0: [yes]}),
    ):
        assert changes.of_rows(ticket_row(0, flags), answers) == found


def test_a_rejected_start_changes_no_slot():
    changes, yes, error = ResultChanges(2), result("yes"), StreamError(ErrorCode.STREAM_LIMIT, "full")
    assert changes.of_rows(ticket_row(1), {0: yes}) == {0: [yes]}
    assert changes.of_rows(ticket_row(-1, START), {0: error}) == {0: error}
    assert changes.of_rows(ticket_row(1), {0: yes}) == {0: []}


def test_results_of_one_request_are_compared_one_after_the_other():
    changes = ResultChanges(1)
    ends = [result("ten", is_final=True), result("", segment=1)]
    assert changes.of_results(0, ends) == ends[:1]
    more = [result("one", segment=1, is_final=True), result("two", segment=2)]
    assert changes.of_results(0, more) == more


def test_a_poll_is_always_answered():
    changes, no_text = ResultChanges(1), result("")
    assert changes.of_rows(ticket_row(0), {0: no_text}) == {0: []}
    assert changes.of_rows(ticket_row(0, POLL), {0: no_text}) == {0: (no_text,)}
