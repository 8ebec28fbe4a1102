"""RTTM files, the diarization error rate, and word errors of speakers."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ManifestError
from penstock.evaluation.diarization import (
    DiarizationErrors,
    SpeakerTurn,
    assign,
    diarization_errors,
    reference_turns,
    word_errors,
)
from penstock.evaluation.errors import EditCounts
from penstock.evaluation.manifest import Utterance

CALL = Utterance(Path("audio/a call.wav"), 10.0, "hello", Path("m.jsonl"), 7)


def rttm(*turns: tuple[str, float, float], name: str = "a_call") -> str:
    return "".join(f"SPEAKER {name} 1 {b:.2f} {e - b:.2f} <NA> <NA> {who} <NA> <NA>\n" for who, b, e in turns)


@pytest.mark.parametrize("is_folder", [False, True])
def test_turns_are_found_by_the_name_of_the_recording(tmp_path, is_folder):
    path, silent = tmp_path / "a call.rttm", replace(CALL, audio=Path("silent.wav"), reference=" ")
    other = replace(CALL, audio=Path("b.wav"))
    lines = ";; a comment\n\nSPKR-INFO a_call 1 <NA> <NA> <NA> unknown A <NA>\n"
    path.write_text(f"\ufeff{lines}{rttm(('A', 0.5, 2), ('B', 1, 1.5))}{rttm(('A', 3, 4), name='b')}\r\n")
    assert reference_turns(tmp_path if is_folder else path, [CALL, silent, other, CALL]) == [
        [SpeakerTurn("A", 0.5, 2.0), SpeakerTurn("B", 1.0, 1.5)], [], [SpeakerTurn("A", 3.0, 4.0)],
        [SpeakerTurn("A", 0.5, 2.0), SpeakerTurn("B", 1.0, 1.5)],
    ]  # fmt: skip


def test_a_file_of_its_own_may_have_no_turns(tmp_path):
    (tmp_path / "a call.rttm").write_text("")
    assert reference_turns(tmp_path, [CALL]) == [[]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rttm(("A", 0, 1), name="other"), "m.jsonl:7: {path} has no turns of a_call, the recording a call.wav"),
        ("a_call 1 0.5 1.0 A", "{path}:1: 'a_call', expected a line of RTTM, which begins with SPEAKER"),
        (
            rttm(("A", 0, 1)) + rttm(("Ann Lee", 0, 1)),
            "{path}:2: has 11 fields, expected 9 or 10; names have no blanks",
        ),
        ("SPEAKER a_call 1 0.5", "{path}:1: has 4 fields"),
        (rttm(("A", 0, 1)).replace("0.00", "zero"), "{path}:1: start is 'zero', expected seconds"),
        (rttm(("A", 2, 1)), "{path}:1: duration is '-1.00', expected seconds"),
        (rttm(("A", 0, 1)).replace("1.00", "nan"), "{path}:1: duration is 'nan'"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    path = tmp_path / "reference.rttm"
    path.write_text(text)
    with pytest.raises(ManifestError) as error:
        reference_turns(path, [CALL])
    assert message.format(path=path) in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ManifestError, match="No such file"):
        reference_turns(tmp_path / "none.rttm", [CALL])
    with pytest.raises(ManifestError, match=r"has no \*\.rttm"):
        reference_turns(tmp_path, [CALL])
    (tmp_path / "x.rttm").write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="not UTF-8 text"):
        reference_turns(tmp_path, [CALL])
    (tmp_path / "x.rttm").write_text(rttm(("A", 0, 1)))
    with pytest.raises(ManifestError, match=r"x/a call.wav and audio/a call.wav are both a_call"):
        reference_turns(tmp_path, [CALL, replace(CALL, audio=Path("x/a call.wav"))])


@pytest.mark.parametrize(
    ("reference", "hypothesis", "collar_s", "expected"),
    [
        ([("A", 0, 4)], [(1, 0, 4)], 0.0, (0, 0, 0, 4)),
        ([("A", 0, 4)], [], 0.0, (4, 0, 0, 4)),
        ([], [(1, 1, 3)], 0.0, (0, 2, 0, 0)),
        ([("A", 0, 4), ("B", 4, 6)], [(1, 0, 6)], 0.0, (0, 0, 2, 6)),
        ([("A", 0, 4), ("B", 2, 6)], [(2, 0, 4), (1, 4, 6)], 0.0, (2, 0, 0, 8)),  # an overlap counts twice
        ([("A", 0, 4), ("B", 0, 4)], [(1, 0, 4), (2, 0, 4)], 0.0, (0, 0, 0, 8)),  # same start and end
        ([("A", 0, 4)], [(1, 0.5, 4.25)], 0.25, (0.25, 0, 0, 3.5)),
        ([("A", 9.1, 12.399999999999999), ("A", 12.4, 14)], [], 0.25, (4.4, 0, 0, 4.4)),  # nor by rounding
    ],
)
def test_diarization_errors(reference, hypothesis, collar_s, expected):
    found = diarization_errors(reference, hypothesis, collar_s)
    assert (found.missed_s, found.false_alarm_s, found.confused_s, found.speech_s) == pytest.approx(expected)
    assert (found + found).rate == (None if not expected[3] else pytest.approx(sum(expected[:3]) / expected[3]))


def test_no_speech_has_no_rate():
    assert diarization_errors([], []) == DiarizationErrors() and DiarizationErrors().rate is None


def test_the_assignment_is_the_best_of_all():
    draw = random.Random(0)
    for rows, columns in itertools.product(range(5), range(5)):
        costs = [[draw.choice([draw.random(), -draw.random(), 0.0]) for _ in range(columns)] for _ in range(rows)]
        chosen = assign(costs) if columns else [None] * rows
        used = [place for place in chosen if place is not None]
        assert len(set(used)) == len(used) == min(rows, columns)
        least = min(
            (
                sum(costs[row][column] for row, column in zip(some, order, strict=True))
                for some in itertools.combinations(range(rows), min(rows, columns))
                for order in itertools.permutations(range(columns), min(rows, columns))
            ),
            default=0.0,
        )
        found = sum(costs[row][place] for row, place in enumerate(chosen) if place is not None)
        assert found == pytest.approx(least)


def test_word_errors_of_speakers():
    reference = {"Ann": "yes I do", "Bob": "do you"}
    assert word_errors(reference, {1: "do you", 2: "yes I do"}) == EditCounts(0, 0, 0, 5)
    assert word_errors(reference, {2: "do you yes I do"}) == EditCounts(0, 2, 2, 5)
    assert word_errors(reference, {}) == EditCounts(0, 5, 0, 5)
    assert word_errors({}, {1: "um", 3: "oh well"}) == EditCounts(0, 0, 3, 0)
    assert word_errors(reference, {1: "do you", 2: "yes I did", 3: "well"}) == EditCounts(1, 0, 1, 5)
