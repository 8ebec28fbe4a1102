"""Labels of words, and results that wait for them: they depend on the audio alone."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ErrorCode
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.speakers import LOST, RowFrames, SpeakerFrames, StreamSpeakers
from penstock.pipeline.results.words import Word


def frames(*speakers: int, of: int = 3) -> np.ndarray:
    """[n, K] where these speakers speak, from 1."""
    return np.eye(of, dtype=np.float32)[np.array(speakers, int) - 1] * 0.9 + 0.01


def result(segment: int, *words: tuple[int, int], is_final: bool = False, at_s: float = 1.0) -> StreamResult:
    """With words from and to these times in ms."""
    spoken = tuple(Word(f"{begin}", begin, end) for begin, end in words)
    return StreamResult(segment, " ".join(word.text for word in spoken), is_final, at_s, spoken, ())


def labels(answer: StreamResult | None) -> list[tuple[int, ...] | None]:
    """Speakers of the words of each entry; None of a partial one."""
    if answer is None:
        return []
    return [entry.word_speakers if entry.is_final else None for entry in answer.entries]


class Stream:
    """One whose rows carry frames that follow each other."""

    def __init__(self, most: int | None = None):
        self.speakers, self._sent = StreamSpeakers(most), 0

    def row(self, decided=(), answer=None, copied=None, is_forced=False, is_over=False) -> StreamResult | None:
        decided = frames(*decided)
        self.speakers.add(RowFrames(self._sent, decided, None if copied is None else frames(*copied)))
        self._sent += len(decided)
        return self.speakers.place(answer, is_forced, is_over)


def test_a_final_result_waits_until_its_last_word_is_covered():
    """Later results wait, too, in order; partial results of one segment become one."""
    stream = Stream()
    assert labels(stream.row([1] * 10, result(0, (0, 50)))) == [None]
    assert stream.row([1] * 5, result(0, (100, 200), is_final=True)) is None
    assert stream.row([2] * 4, result(1, (220, 230))) is None
    assert stream.row([], result(1, (230, 240))) is None
    answer = stream.row([2])
    assert labels(answer) == [(1, 1), None]
    assert [entry.segment for entry in answer.entries] == [0, 1]
    assert [word.start_ms for word in answer.words] == [220, 230]
    assert labels(stream.row([3] * 20, result(1, (300, 310), is_final=True))) == [(3, 3, 3)]
    assert labels(stream.row([], result(2, is_final=True))) == [()]


def test_an_end_by_the_client_waits_for_nothing_and_changes_nothing_later():
    """Frames of a copy end the segment; the decided ones come again and replace them."""
    stream = Stream()
    assert stream.row([1] * 10, result(0, (0, 120), is_final=True)) is None
    answer = replace(result(2, (150, 190), is_final=True), earlier=(result(1, (120, 150), is_final=True),))
    forced = stream.row([], answer, copied=[2] * 9, is_forced=True)
    assert labels(forced) == [(1,), (2,), (2,)]
    assert stream.row([3] * 9, result(3, (150, 200), is_final=True)) is None
    assert labels(stream.row([3])) == [(3,)]
    assert labels(stream.row([], result(4, (190, 400), is_final=True), is_over=True)) == [(3,)]


def test_an_end_by_the_client_that_is_decoded_late_has_the_frames_of_its_time():
    """Happens with an offline model's windows."""
    stream = Stream()
    assert stream.row([1] * 10, copied=[2] * 10) is None
    assert stream.row([3] * 50, copied=[1]) is None
    forced = stream.row([3] * 10, result(0, (0, 90), (100, 190), is_final=True), is_forced=True)
    assert labels(forced) == [(1, 2)]
    assert labels(stream.row([], result(1, (200, 300), (570, 620), is_final=True), is_forced=True)) == [(3, 3)]


def test_alternatives_have_speakers_and_are_waited_for():
    stream, first, second = Stream(most=2), Word("a", 0, 100), Word("b", 100, 200)
    alternatives = (Alternative("a", 0.0, 0.0, (first,)), Alternative("a b", 0.0, 0.0, (first, second)))
    final = replace(result(0, (0, 100), is_final=True), alternatives=alternatives)
    assert stream.row([3] * 10, final) is None
    answer = stream.row([2] * 10)
    assert answer.word_speakers == (1,)  # of the first two the first, as both are silent
    assert [one.speakers for one in answer.alternatives] == [(1,), (1, 2)]


@pytest.mark.parametrize(
    "lost", [None, RowFrames(LOST, frames()), RowFrames(7, frames(1)), RowFrames(10, frames(1, of=2))]
)
def test_a_lost_stream_goes_on_without_speakers(lost):
    """None: a row by another ensemble."""
    stream = Stream()
    held = result(0, (0, 300), is_final=True)
    held = replace(held, alternatives=(Alternative("a", 0.0, 0.0, held.words),))
    assert stream.row([1] * 10, held) is None
    stream.speakers.add(lost)
    answer = stream.speakers.place(result(1), False, False)
    assert labels(answer) == [(0,), None]
    assert answer.entries[0].alternatives[0].speakers == (0,)
    assert labels(stream.row([1] * 10, result(1, (300, 400), is_final=True))) == [(0,)]


def test_memory_is_bounded_in_a_long_silence():
    stream, part = Stream(), [1] * 100
    for second in range(200):
        stream.row(part, result(0, at_s=second + 1))
        if second == 100:
            before = len(pickle.dumps(stream.speakers))
    assert len(pickle.dumps(stream.speakers)) <= 1.5 * before
    assert labels(stream.row(part, result(0, (199_000, 200_000), is_final=True))) == [(1,)]


def test_frames_of_requests_are_split_and_joined():
    rows = [
        RowFrames(0, frames(1, 2)),
        RowFrames(LOST, frames()),
        RowFrames(2, frames(3), frames(1)),
        RowFrames(3, frames(), frames()),
    ]
    joined = SpeakerFrames.of(rows, 3)
    assert joined.problem(4) is None
    for row, found in zip(rows, joined.by_row(), strict=True):
        assert (row.first, row.copied is None) == (found.first, found.copied is None)
        np.testing.assert_array_equal(row.decided, found.decided)
        if row.copied is not None:
            np.testing.assert_array_equal(row.copied, found.copied)
    for wrong in (joined._replace(probabilities=frames(1)), joined._replace(rows=joined.rows[:3])):
        assert wrong.problem(4).code is ErrorCode.REQUEST_INVALID
