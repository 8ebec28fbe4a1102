"""Rows of tickets: those that were forwarded, in order, with their options, and the way back to their tickets."""

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.speakers import LOST, RowFrames, SpeakerFrames
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.slots.ticket import END, FINALIZE, NO_ROW, POLL, START, Column, Ticket
from penstock.pipeline.stages.decoder_rows import ResultChanges, rows_of_tickets

WIDTH = 3


def ticket_row(slot: int, flags: int, frames: int) -> list[int]:
    return [slot, 10 + slot, 20 + slot, flags, 1, 7, 100 + slot, frames]


def test_rows_of_tickets_without_those_that_the_features_stage_rejected():
    options = [ResolvedOptions(decoder="alsd", beam_size=2, n_best=number) for number in (1, 2)]
    direct = Ticket(np.array([ticket_row(4, START, 2)]), options={0: options[0]})
    error = StreamError(ErrorCode.STREAM_LIMIT, "full")
    batched = Ticket(
        np.array([ticket_row(5, 0, 1), NO_ROW, ticket_row(6, START | END, 0), ticket_row(5, FINALIZE, 3)]),
        is_batched=True,
        options={2: options[1]},
        errors={1: error},
    )
    encoded = [torch.rand(2, WIDTH), torch.rand(4, WIDTH)]
    spoken = SpeakerFrames.of([RowFrames(LOST + row, np.zeros((row, 2), np.float32)) for row in range(4)], 2)
    rows, ticket_of, row_of = rows_of_tickets([direct, batched], encoded, [None, spoken], 8)
    assert rows.slots.tolist() == [4, 5, 6, 5]
    assert rows.generations.tolist() == [14, 15, 16, 15]
    assert rows.numbers.tolist() == [24, 25, 26, 25]
    assert rows.flags.tolist() == [START, 0, START | END, FINALIZE]
    assert rows.covered_samples.tolist() == [104, 105, 106, 105]
    assert rows.frames.tolist() == [2, 1, 0, 3]
    assert torch.equal(rows.encoded, torch.cat(encoded))
    assert rows.options == {0: options[0], 2: options[1]}
    assert {row: (one.first, len(one.decided)) for row, one in rows.speaker_frames.items()} == {
        1: (LOST, 0), 2: (1, 2), 3: (2, 3),
    }  # fmt: skip
    assert rows.wants_result.tolist() == [True, False, False, False]
    assert list(zip(ticket_of.tolist(), row_of.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 2), (1, 3)]


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


def one_row(slot: int, flags: int = 0) -> np.ndarray:
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
        assert changes.of_rows(one_row(0, flags), answers) == found


def test_a_rejected_start_changes_no_slot():
    changes, yes, error = ResultChanges(2), result("yes"), StreamError(ErrorCode.STREAM_LIMIT, "full")
    assert changes.of_rows(one_row(1), {0: yes}) == {0: [yes]}
    assert changes.of_rows(one_row(-1, START), {0: error}) == {0: error}
    assert changes.of_rows(one_row(1), {0: yes}) == {0: []}


def test_results_of_one_request_are_compared_one_after_the_other():
    changes = ResultChanges(1)
    ends = [result("ten", is_final=True), result("", segment=1)]
    assert changes.of_results(0, ends) == ends[:1]
    more = [result("one", segment=1, is_final=True), result("two", segment=2)]
    assert changes.of_results(0, more) == more


def test_a_poll_is_always_answered():
    changes, no_text = ResultChanges(1), result("")
    assert changes.of_rows(one_row(0), {0: no_text}) == {0: []}
    assert changes.of_rows(one_row(0, POLL), {0: no_text}) == {0: (no_text,)}
