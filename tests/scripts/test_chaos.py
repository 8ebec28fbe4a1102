"""`scripts/chaos.py`: the seed repeats the schedule, runs add up, and what counts as a failure; no server."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.server.fleet_streams import Stream

ROW = {
    "minutes": 30.0, "chunks": 10, "streams": 2, "words": 7, "words_changed": 1, "moved": 1,
    "replayed_s": 12, "reconnections": 0, "problems": 0, "replay_bytes": 0, "gateway_mib_per_hour": 0.4,
    "faults": {"kill_server": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
        yield importlib.import_module("chaos")


def test_the_seed_repeats_the_schedule(script):
    events = script.schedule(1, 200)
    assert events == script.schedule(1, 300)[:200] != script.schedule(2, 200)
    assert {event.fault for event in events} == set(script.FAULTS)
    assert {event.number for event in events} == set(range(6))
    assert all(5.0 <= event.pause_s <= 30.0 for event in events)


def test_what_is_done_follows_the_schedule(script, monkeypatch):
    now, done = [0.0], []
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(script.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(script, "FAULTS", dict.fromkeys(script.FAULTS, lambda fleet, number: None))
    script.work(None, script.read_arguments(["--minutes", "10", "--seed", "5"]), done)()
    assert done == [event.fault for event in script.schedule(5, len(done))]
    assert 600 - 30 < now[0] <= 600


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
