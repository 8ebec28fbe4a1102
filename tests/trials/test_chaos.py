"""`trials/chaos.py`: the seed repeats the schedule, runs add up, and what counts as a failure; no server."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest.gateway_clients import Text
from loadtest.processes import Usage
from trials import chaos
from trials.server import fleet_streams
from trials.server.fleet_streams import Run, Stream

ROW = {
    "minutes": 30.0, "chunks": 10, "streams": 2, "words": 7, "words_changed": 1, "moved": 1,
    "replayed_s": 12, "reconnections": 0, "problems": 0, "replay_bytes": 0, "gateway_mib_per_hour": 0.4,
    "faults": {"kill_server": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def script():
    return chaos


def test_the_seed_repeats_the_schedule(script):
    events = script.schedule(1, 200)
    assert events == script.schedule(1, 300)[:200] != script.schedule(2, 200)
    assert {event.fault for event in events} == set(script.FAULTS)
    assert {event.number for event in events} == set(range(6))
    assert all(5.0 <= event.pause_s <= 30.0 for event in events)


class StandInFleet:
    """Takes two seconds to be up again after a fault."""

    def __init__(self, sleep):
        self._sleep = sleep

    def wait_until_up(self):
        self._sleep(2.0)


def test_what_is_done_follows_the_schedule(script, monkeypatch):
    now, done = [0.0], []
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(script.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(script, "FAULTS", dict.fromkeys(script.FAULTS, lambda fleet, number: None))
    fleet = StandInFleet(script.time.sleep)
    script.work(fleet, script.read_arguments(["--minutes", "10", "--seed", "5"]), done)()
    assert done == [event.fault for event in script.schedule(5, len(done))]
    assert 600 - 30 < now[0] <= 600 + 2


def test_runs_add_up(script, tmp_path):
    path = tmp_path / "runs.json"
    script.add_run(path, ROW)
    script.add_run(path, ROW | {"chunks": 5, "faults": {"kill_server": 1, "drain_server": 1}})
    document = json.loads(path.read_text())
    assert document["sums"]["chunks"] == 15 and document["sums"]["words"] == 14
    assert document["sums"]["faults"] == {"drain_server": 1, "kill_server": 3}
    assert len(document["runs"]) == 2


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({}, False),
        ({"problems": 1}, True),
        ({"replay_bytes": 4}, True),
        ({"gateway_mib_per_hour": 2.0}, True),
        ({"gateway_mib_per_hour": 50.0, "minutes": 10.0}, False),
        ({"gateway_mib_per_hour": None}, False),
    ],
)
def test_what_fails(script, change, fails):
    assert script.is_failed(ROW | change) == fails


def test_memory_that_comes_and_goes_is_no_slope(script):
    """100 MiB with 40 more in every other half minute; and 6 MiB per hour that are lost, under the same."""
    for lost_mib_per_s in (0.0, 6 / 3600):
        sizes = [100 + 40 * (second // 30 % 2) + lost_mib_per_s * second for second in range(0, 1800, 5)]
        taken = SimpleNamespace(readings=[Usage(5.0 * i, 0.0, pss_mib={"gateway": mib}) for i, mib in enumerate(sizes)])
        least = script.least_memory(taken)
        assert len(least) == 24 and least[0] == (0.0, 100.0)
        assert script.slope(least) == pytest.approx(3600 * lost_mib_per_s, abs=0.5)


WORDS = [("one", 0, 100), ("nine", 500, 600), ("two", 900, 1000)]


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (WORDS, 0),
        ([WORDS[0], ("ninety", 520, 640), WORDS[2]], 1),
        (WORDS[:2], None),
        ([*WORDS, WORDS[2]], None),
        ([WORDS[0], *WORDS], None),
        ([WORDS[1], WORDS[0], WORDS[2]], None),
        ([(f"other {word}", start, end) for word, start, end in WORDS], None),
        ([], None),
    ],
    ids=["equal", "changed", "lost", "repeated", "repeated first", "order", "another stream", "none"],
)
def test_words_are_told_once_in_order(told, changed):
    stream = Stream("segments", np.zeros(0, np.int16))
    if changed is not None:
        assert stream._check(told, WORDS) == changed
    else:
        with pytest.raises(AssertionError, match="segments: word "):
            stream._check(told, WORDS)


class StandInGateway:
    """No room for the first attempts; then the words."""

    gateway_fault_s = 0.0

    def __init__(self, *errors):
        self.errors = list(errors)

    async def texts(self, _parts):
        if self.errors:
            raise self.errors.pop(0)
        yield Text("one two", True, None, (WORDS[0], WORDS[2]))


@pytest.mark.parametrize(
    ("speakers", "stopped"), [((1, 2), 0), ((2, None), 1), ((None, 1), 0), ((1,), None), ((), None)]
)
def test_speakers_of_a_stream_stop_with_its_last_words(speakers, stopped, monkeypatch):
    kind, words = "segments with speakers", (WORDS[0], WORDS[2])

    async def texts(fleet, parts):
        yield Text("one two", True, None, words, speakers)

    monkeypatch.setitem(fleet_streams.SPEAKER_KINDS, kind, texts)
    stream = Stream(kind, np.zeros(160, np.int16))
    if stopped is None:
        with pytest.raises(AssertionError, match=f"{kind}: . words are not told"):
            asyncio.run(stream.play(StandInGateway(), words))
    else:
        run = Run([(stream, asyncio.run(stream.play(StandInGateway(), words)))])
        assert (run.words, run.speakers_stopped) == (2, stopped)


@pytest.mark.parametrize(
    ("errors", "rejections"),
    [
        ((ConnectionError("429: all replicas are full"),), 1),
        ((ConnectionError("Received RST_STREAM with error code 8"), ConnectionError("HTTP 429")), 2),
        ((ConnectionError("the server of the stream failed"),), None),
        (tuple(ConnectionError("HTTP 429") for _ in range(300)), None),
    ],
)
def test_a_stream_without_room_begins_anew(errors, rejections, monkeypatch):
    monkeypatch.setattr(fleet_streams, "_RETRY_S", 0.0)
    monkeypatch.setitem(fleet_streams.KINDS, "segments", lambda fleet, parts: fleet.texts(parts))
    played = Stream("segments", np.zeros(160, np.int16)).play(StandInGateway(*errors), [WORDS[0], WORDS[2]])
    if rejections is None:
        with pytest.raises(AssertionError):
            asyncio.run(played)
        return
    found = asyncio.run(played)
    assert (found.rejections, found.reconnections, len(found.words)) == (rejections, 0, 2)
