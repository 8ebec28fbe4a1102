"""Real-time pace, and which samples belong to which segment."""

import random

import numpy as np
import pytest

from penstock_client.playback import Pacer, SegmentEnds


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_deadlines_do_not_drift_when_every_wait_is_too_long():
    clock = Clock()
    pacer = Pacer(clock)
    late_s = []
    for index in range(1, 1001):
        clock.now_s += pacer.remaining_s(index * 1600) + 0.004
        late_s.append(clock.now_s - (100.0 + index * 0.1))
    assert max(late_s) < 0.0041


def test_a_late_request_does_not_delay_the_next():
    clock = Clock()
    pacer = Pacer(clock)
    clock.now_s += 0.35
    assert [round(pacer.remaining_s(n * 1600), 6) for n in (1, 2, 3, 4)] == [0, 0, 0, 0.05]


class RecordingStream:
    """Records the calls."""

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


def deliver(ends: SegmentEnds, sizes: list[int]) -> RecordingStream:
    stream, start = RecordingStream(), 0
    for i, size in enumerate(sizes):
        ends.send(stream, np.arange(start, start + size, dtype=np.float32), is_end=i == len(sizes) - 1)
        start += size
    return stream


@pytest.mark.parametrize("seed", range(20))
def test_segments_have_equal_length_for_any_blocks(seed):
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
