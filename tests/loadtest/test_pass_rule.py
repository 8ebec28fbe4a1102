import math

import numpy as np
import pytest

from loadtest.pass_rule import Chunks, chunk_duration_s, late_chunks, reason_not_to_count, reasons_to_fail
from tests.loadtest.made_up import piece_rows

GOOD = {"chunks": 1000, "late": 1, "p95_final_s": 1.0, "errors": 0, "refusals": 0}


def test_latency_counts_from_the_deadline_and_only_where_a_chunk_is_complete():
    pieces = piece_rows(
        {"completes_chunk": False},
        {"deadline_s": 5.0, "sent_s": 5.3, "answered_s": 5.5, "completes_chunk": True},
        {"deadline_s": 6.0, "sent_s": 6.0, "answered_s": 6.1, "is_last": True},
    )
    chunks = Chunks.of(pieces)
    assert chunks.latency_s == pytest.approx([0.5])
    assert chunks.final_latency_s == pytest.approx([0.1])


def test_a_piece_without_an_answer_counts_as_a_late_chunk():
    chunks = Chunks.of(piece_rows({"answered_s": math.inf, "is_last": True}))
    assert late_chunks(chunks.latency_s, 100.0) == 1
    assert chunks.final_latency_s.tolist() == [math.inf]


def test_late_is_more_than_one_chunk_after_it_was_complete():
    assert late_chunks(np.array([0.0, 0.5599, 0.56, 0.5601, math.inf]), 0.56) == 2


def test_the_limits_themselves_pass():
    assert reasons_to_fail(**GOOD) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"late": 2}, "2 of 1000 chunks late"),
        ({"p95_final_s": 1.001}, "above 1 s"),
        ({"p95_final_s": math.inf}, "above 1 s"),
        ({"errors": 1}, "1 streams failed"),
        ({"refusals": 3}, "3 streams were refused"),
        ({"chunks": 0, "late": 0}, "too short"),
        ({"p95_final_s": math.nan}, "too short"),
    ],
)
def test_each_limit_fails_a_trial_by_itself(change, reason):
    (said,) = reasons_to_fail(**GOOD | change)
    assert reason in said


@pytest.mark.parametrize(("offered", "counts"), [(64.0, True), (57.6, True), (57.5, False), (0.0, False)])
def test_a_trial_counts_if_its_streams_were_there(offered, counts):
    assert (reason_not_to_count(64, offered) is None) == counts


def test_the_chunk_is_found_in_the_answers():
    """Chunks of 560 ms in pieces of 100 ms; the first is shorter, the last piece flushes what is left."""
    reached = (0.0, 0.0, 0.49, 0.49, 1.05, 1.05, 1.61, 1.61, 1.73)
    rows = [{"audio_processed_s": value, "is_last": i == 8} for i, value in enumerate(reached)]
    assert chunk_duration_s([piece_rows(*rows)]) == 0.56


def test_pieces_that_hold_several_chunks_do_not_hide_a_single_one():
    tables = [
        piece_rows({"audio_processed_s": 0.49}, {"audio_processed_s": 1.61}, {"audio_processed_s": 2.17}),
        piece_rows({"audio_processed_s": 1.05}, {"audio_processed_s": 2.17}),
    ]
    assert chunk_duration_s(tables) == 0.56


@pytest.mark.parametrize("tables", [[], [piece_rows()], [piece_rows({"audio_processed_s": 0.49})]])
def test_one_chunk_alone_tells_nothing(tables):
    assert chunk_duration_s(tables) is None
