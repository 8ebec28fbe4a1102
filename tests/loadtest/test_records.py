import dataclasses

import numpy as np
import pytest

from loadtest.records import (
    COMPLETE,
    CUT_SHORT,
    FAILED,
    PIECE,
    REFUSED,
    SentPiece,
    Utterance,
    piece_table,
    pieces_between,
)
from tests.loadtest.made_up import piece_rows, utterance


def test_notes_arrive_as_they_were_sent():
    msgpack = pytest.importorskip("msgpack")  # Locust's
    sent = utterance({"is_last": True}, {"answered_s": np.inf}, recording=2, text="ada")
    message = msgpack.unpackb(msgpack.packb(sent.to_message()))
    arrived = Utterance.from_message(message)
    assert dataclasses.replace(arrived, pieces=0) == dataclasses.replace(sent, pieces=0)
    assert (arrived.pieces == sent.pieces).all()


def test_a_table_has_each_piece_s_values():
    table = piece_table([SentPiece(1.0, 1.5, 0.5, 0.1, True, 2.0, 0.4, True), SentPiece(3.0, 3.0, 0.0, 0.1, False)])
    assert table.dtype == PIECE
    assert table["deadline_s"].tolist() == [1.0, 3.0]
    assert table["answered_s"].tolist() == [2.0, np.inf]
    assert table["completes_chunk"].tolist() == [True, False]


def test_a_window_takes_its_first_moment_and_not_its_last():
    notes = [utterance({"deadline_s": 1.0}, {"deadline_s": 2.0}), utterance({"deadline_s": 0.9}, {"deadline_s": 1.9})]
    assert sorted(pieces_between(notes, 1.0, 2.0)["deadline_s"]) == pytest.approx([1.0, 1.9])


def test_windows_side_by_side_take_every_piece_once():
    notes = [utterance(*({"deadline_s": moment} for moment in np.linspace(0, 9.99, 40)))]
    parts = [pieces_between(notes, begin, begin + 2.5) for begin in (0.0, 2.5, 5.0, 7.5)]
    assert np.concatenate(parts)["deadline_s"].tolist() == notes[0].pieces["deadline_s"].tolist()


@pytest.mark.parametrize(("outcome", "counts"), [(COMPLETE, 1), (CUT_SHORT, 1), (REFUSED, 0), (FAILED, 0)])
def test_what_a_refused_or_failed_stream_lost_is_not_late_as_well(outcome, counts):
    assert len(pieces_between([utterance({"deadline_s": 1.0}, outcome=outcome)], 0.0, 2.0)) == counts


def test_no_notes_are_an_empty_table():
    assert pieces_between([], 0.0, 1.0).shape == piece_rows().shape == (0,)
