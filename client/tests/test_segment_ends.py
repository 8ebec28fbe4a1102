"""Which samples go to which segment."""

import random

import numpy as np
import pytest

from penstock_client.segment_ends import SegmentEnds


class NotedStream:
    """Notes what it is asked to do."""

    def __init__(self):
        self.calls: list[tuple[str, list[float]]] = []

    def send(self, samples):
        self.calls.append(("send", list(samples)))

    def finalize(self, samples):
        self.calls.append(("finalize", list(samples)))

    def finish(self, samples):
        self.calls.append(("finish", list(samples)))

    @property
    def segments(self) -> list[list[float]]:
        found: list[list[float]] = [[]]
        for what, samples in self.calls:
            found[-1] += samples
            if what == "finalize":
                found.append([])
        return found


def deliver(ends: SegmentEnds, sizes: list[int]) -> NotedStream:
    stream, start = NotedStream(), 0
    for i, size in enumerate(sizes):
        ends.send(stream, np.arange(start, start + size, dtype=np.float32), is_last=i == len(sizes) - 1)
        start += size
    return stream


@pytest.mark.parametrize("seed", range(20))
def test_segments_have_their_length_whatever_the_blocks(seed):
    chance = random.Random(seed)
    every = chance.randint(1, 40)
    stream = deliver(SegmentEnds(every / 16_000), [chance.randint(0, 60) for _ in range(20)])
    samples = [x for segment in stream.segments for x in segment]
    assert samples == list(range(len(samples)))
    assert all(len(segment) == every for segment in stream.segments[:-1])
    assert 1 <= len(stream.segments[-1]) <= every
    assert [what for what, _ in stream.calls].count("finish") == 1 and stream.calls[-1][0] == "finish"
    assert all(samples for what, samples in stream.calls if what == "send")


def test_a_segment_that_ends_with_the_audio_ends_with_the_stream():
    stream = deliver(SegmentEnds(4 / 16_000), [4, 4])
    assert [what for what, _ in stream.calls] == ["finalize", "finish"]
    assert [len(samples) for _, samples in stream.calls] == [4, 4]


def test_without_a_length_there_is_one_segment():
    assert [what for what, _ in deliver(SegmentEnds(), [3, 5]).calls] == ["send", "finish"]


def test_ending_now_closes_the_next_block_and_starts_the_length_anew():
    ends, stream = SegmentEnds(10 / 16_000), NotedStream()
    ends.send(stream, np.zeros(3))
    ends.end_now()
    ends.send(stream, np.zeros(4))
    ends.send(stream, np.zeros(9))
    ends.send(stream, np.zeros(3))
    assert [(what, len(samples)) for what, samples in stream.calls] == [
        ("send", 3),
        ("finalize", 4),
        ("send", 9),
        ("finalize", 1),
        ("send", 2),
    ]


def test_ending_now_where_a_segment_has_just_ended_makes_no_empty_one():
    ends, stream = SegmentEnds(4 / 16_000), NotedStream()
    ends.end_now()
    ends.send(stream, np.zeros(4))
    assert [(what, len(samples)) for what, samples in stream.calls] == [("finalize", 4)]
