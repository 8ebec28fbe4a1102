"""Pacing and records, on a clock that only sleeping moves; no network."""

import asyncio
from collections import deque

import numpy as np
import pytest

from loadtest.player import COMPLETE, Player, Utterance
from penstock_client import Result, Transcript

REQUEST = 1600


class Clock:
    """Seconds that pass only in `sleep`."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


class FakeStream:
    """Answers each request `delay_s` after it was sent."""

    def __init__(self, clock: Clock, delay_s: float = 0.02, sending_s: dict | None = None):
        self.transcript = Transcript()
        self.sent: list[tuple[float, int]] = []
        self.is_closed = False
        self.held_samples = 0
        self._clock = clock
        self._delay_s = delay_s
        self._sending_s = sending_s or {}
        self._waiting: deque[tuple[float, Result]] = deque()
        self._samples = 0
        self._is_finished = False

    async def send(self, samples: np.ndarray) -> None:
        if self._sending_s.get(len(self.sent)):
            await self._clock.sleep(self._sending_s[len(self.sent)])
        self.sent.append((self._clock(), samples.size))
        self._samples += samples.size
        covered_s = self._samples // (4 * REQUEST) * 0.4 if not self._is_finished else self._samples / 16000
        result = Result(0, "ada", self._is_finished, covered_s, (), (), (), round_trip_s=self._delay_s)
        self._waiting.append((self._clock() + self._delay_s, result))

    async def finish(self, samples: np.ndarray = ()) -> None:
        self._is_finished = True
        await self.send(np.asarray(samples))

    async def poll(self, wait_s: float = 0.0) -> list[Result]:
        due_s = self._waiting[0][0] if self._waiting else float("inf")
        if wait_s and due_s > self._clock():
            await self._clock.sleep(min(wait_s, due_s - self._clock()))
        arrived = []
        while self._waiting and self._waiting[0][0] <= self._clock():
            arrived.append(self._waiting.popleft()[1])
            self.transcript.add(arrived[-1])
        self.transcript.is_complete = self._is_finished and not self._waiting
        return arrived

    async def __aenter__(self) -> "FakeStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closed = True


class AligningStream(FakeStream):
    """Makes requests of 2.5 parts."""

    async def send(self, samples: np.ndarray) -> None:
        samples, self.held_samples = self.held_samples + samples.size, 0
        if not self._is_finished:
            self.held_samples = samples % (5 * REQUEST // 2)
        if samples > self.held_samples:
            await super().send(np.zeros(samples - self.held_samples))


def play(stream: FakeStream, clock: Clock, samples: int) -> Utterance:
    player = Player(np.zeros(samples, np.float32), REQUEST, lambda: False, clock, clock.sleep)
    return asyncio.run(player.play(lambda: stream, 3, 1000.5))


def test_requests_go_when_their_last_sample_would_have_been_spoken():
    clock = Clock()
    stream = FakeStream(clock)
    utterance = play(stream, clock, samples=4 * REQUEST + 400)
    moments = [1000.6, 1000.7, 1000.8, 1000.9, 1000.925]
    assert [when for when, _ in stream.sent] == pytest.approx(moments)
    assert [samples for _, samples in stream.sent] == [REQUEST] * 4 + [400]
    assert utterance.requests["deadline_s"] == pytest.approx(moments)
    assert utterance.requests["audio_s"] == pytest.approx([0.1] * 4 + [0.025])
    assert (utterance.outcome, utterance.text, utterance.recording, stream.is_closed) == (COMPLETE, "ada", 3, True)


def test_every_answer_goes_to_its_request():
    clock = Clock()
    requests = play(FakeStream(clock, delay_s=0.25), clock, samples=6 * REQUEST).requests
    assert requests["answered_s"] - requests["sent_s"] == pytest.approx([0.25] * 6)
    assert requests["completes_chunk"].tolist() == [False, False, False, True, False, True]
    assert requests["is_last"].tolist() == [False] * 5 + [True]


def test_parts_that_wait_for_others_are_recorded_with_the_request_that_carries_them():
    clock = Clock()
    stream = AligningStream(clock)
    requests = play(stream, clock, samples=6 * REQUEST + 400).requests
    assert [when for when, _ in stream.sent] == pytest.approx([1000.8, 1001.0, 1001.125])
    assert requests["deadline_s"] == pytest.approx([1000.8, 1001.0, 1001.125])
    assert requests["audio_s"] == pytest.approx([0.25, 0.25, 0.125])
    assert requests["answered_s"] - requests["sent_s"] == pytest.approx([0.02] * 3)
    assert requests["is_last"].tolist() == [False, False, True]


def test_a_late_request_delays_no_other():
    """Sending the second takes 0.35 s: the third and fourth are late by that, the fifth is on time again."""
    clock = Clock()
    requests = play(FakeStream(clock, sending_s={1: 0.35}), clock, samples=7 * REQUEST).requests
    assert requests["deadline_s"] == pytest.approx([1000.6 + 0.1 * i for i in range(7)])
    late_s = requests["sent_s"] - requests["deadline_s"]
    assert late_s == pytest.approx([0.0, 0.0, 0.25, 0.15, 0.05, 0.0, 0.0], abs=1e-6)
