"""`trials/chaos.py`: the seed repeats the schedule, runs add up, and what counts as a failure; no server."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest.processes import Usage
from trials import chaos
from trials.server.fleet_streams import Stream

ROW = {
    "minutes": 30.0, "chunks": 10, "streams": 2, "words": 7, "words_changed": 1, "moved": 1,
    "replayed_s": 12, "reconnections": 0, "problems": 0, "replay_bytes": 0, "gateway_mib_per_hour": 0.4,
    "faults": {"kill_server": 2},
}  # fmt: skip


def test_the_seed_repeats_the_schedule():
    events = chaos.schedule(1, 200)
    assert events == chaos.schedule(1, 300)[:200] != chaos.schedule(2, 200)
    assert {event.fault for event in events} == set(chaos.FAULTS)
    assert {event.number for event in events} == set(range(6))
    assert all(5.0 <= event.pause_s <= 30.0 for event in events)


def test_runs_add_up(tmp_path):
    path = tmp_path / "runs.json"
    chaos.add_run(path, ROW)
    chaos.add_run(path, ROW | {"chunks": 5, "faults": {"kill_server": 1, "drain_server": 1}})
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
def test_what_fails(change, fails):
    assert chaos.is_failed(ROW | change) == fails


def test_memory_that_comes_and_goes_is_no_slope():
    """100 MiB with 40 more in every other half minute; and 6 MiB per hour that are lost, under the same."""
    for lost_mib_per_s in (0.0, 6 / 3600):
        sizes = [100 + 40 * (second // 30 % 2) + lost_mib_per_s * second for second in range(0, 1800, 5)]
        taken = SimpleNamespace(readings=[Usage(5.0 * i, 0.0, pss_mib={"gateway": mib}) for i, mib in enumerate(sizes)])
        least = chaos.least_memory(taken)
        assert len(least) == 24 and least[0] == (0.0, 100.0)
        assert chaos.slope(least) == pytest.approx(3600 * lost_mib_per_s, abs=0.5)


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
