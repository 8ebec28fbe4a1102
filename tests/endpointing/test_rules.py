"""Each rule ends a segment at its limit, not before, and 0 turns it off."""

import numpy as np
import pytest

from penstock.endpointing.rules import EndpointRules, SegmentFrames

FRAME_MS = 80.0
NOTHING = (0, 0)


class Segment:
    """The current segment of one of three streams."""

    def __init__(self, rules: EndpointRules):
        self._streams = SegmentFrames(3, FRAME_MS)
        self._streams.open(1, rules)
        assert self._streams.are_on.tolist() == [False, rules.is_on, False]

    @property
    def frames(self) -> int:
        return int(self._streams.frames[1])

    def begin(self) -> None:
        self._streams.begin(np.array([1]))

    def add(self, frames: int, stable_end: int, unstable_end: int, has_end_token: bool = False) -> bool:
        ends = np.array([[stable_end, 0], [unstable_end, 0]])
        is_ended, other = self._streams.add(np.array([1, 2]), frames, *ends, np.array([has_end_token, True]))
        assert not other, "it has no rules"
        return bool(is_ended)


def ends(rules: EndpointRules, chunk: int, ends_of_labels: dict[int, int], chunks: int = 400) -> list[float]:
    """Seconds of the segments of a stream; ends_of_labels: by chunk of the segment, where its label ends in frames."""
    segment, durations, number = Segment(rules), [], 0
    for _ in range(chunks):
        if segment.add(chunk, ends_of_labels.get(number, 0), 0):
            durations.append(segment.frames * FRAME_MS / 1000)
            segment.begin()
            number = -1
        number += 1
    return durations


def test_without_rules_a_segment_never_ends():
    assert not EndpointRules().is_on
    assert ends(EndpointRules(), 7, {0: 3}) == []


@pytest.mark.parametrize(("silence_ms", "frames"), [(200, 3), (240, 3), (241, 4), (800, 10)])
def test_silence_counts_from_the_end_of_the_last_label(silence_ms, frames):
    rules = EndpointRules(silence_ms=silence_ms)
    assert rules.is_on
    first, *_ = ends(rules, 1, {0: 1, 5: 6}, chunks=frames + 6)
    assert first == pytest.approx(((1 if frames < 5 else 6) + frames) * 0.08)


def test_silence_without_a_label_is_not_the_silence_behind_one():
    assert ends(EndpointRules(silence_ms=200), 7, {}) == []
    assert ends(EndpointRules(no_speech_ms=2400), 7, {}, chunks=13) == [pytest.approx(5 * 0.56)] * 2
    assert ends(EndpointRules(no_speech_ms=2400), 7, {0: 1}) == []


def test_an_unstable_label_is_one():
    segment = Segment(EndpointRules(silence_ms=800, no_speech_ms=200))
    assert not segment.add(7, 0, 7)
    assert not segment.add(7, 0, 7)
    assert segment.add(7, 0, 0), "the best hypothesis has lost it"


def test_a_label_may_last_into_the_next_chunk():
    segment = Segment(EndpointRules(silence_ms=200))
    assert not segment.add(2, 4, 0)
    assert [segment.add(1, *NOTHING) for _ in range(5)] == [False] * 4 + [True]


def test_the_longest_segment_ends_at_a_short_pause():
    speech = {number: number + 1 for number in range(1000)}
    rules = EndpointRules(silence_ms=800, longest_s=5)
    with_pauses = {number: end for number, end in speech.items() if number % 10 not in (8, 9)}
    assert ends(rules, 1, with_pauses, chunks=70) == [pytest.approx(5.6)], "the first pause of two frames after 5 s"
    assert ends(rules, 1, speech, chunks=130) == [pytest.approx(10.0)], "no pause for another 5 s"


def test_an_end_token_ends_a_segment_with_its_chunk_where_its_rule_is_on():
    rules = EndpointRules(at_end_tokens=True)
    assert rules.is_on
    segment = Segment(rules)
    assert [segment.add(2, 1, 0), segment.add(2, 0, 0), segment.add(2, 0, 0, True)] == [False, False, True]
    assert not Segment(EndpointRules(silence_ms=800)).add(2, 1, 0, True)
