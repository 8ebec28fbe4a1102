"""`benchmarks/server.py`: which trials count, and its tables; no server."""

import json
import sys

import pytest

from loadtest.capacity import Trials
from loadtest.processes import GENERATOR, SERVER, ProcessUse
from loadtest.triton_metrics import MODELS
from tests.helpers.loadtest_records import spoken, summary

CAPACITY = 20


def window(streams: int, seconds: float) -> dict:
    """A window as in loadtest's reports; passes up to CAPACITY streams."""
    found = summary([spoken(11.0, 12.0, delays_s=0.02 if streams <= CAPACITY else 2.0, text="ada lovelace")])
    found["reasons"] = [] if streams <= CAPACITY else ["late"]
    shares = {name: vars(ProcessUse(0.25, 20.0, 0.0)) for name in (SERVER, GENERATOR, *MODELS)}
    machine = found["machine"] | {"processes": shares, "server_cores": 1.0}
    return found | {"streams": streams, "seconds": seconds, "machine": machine, "passed": streams <= CAPACITY}


@pytest.fixture
def trials(monkeypatch) -> list[tuple[str, int, float, list[str]]]:
    """Those that were run: context, streams, seconds, options of the load test."""
    ran = []

    def run(self: Trials, streams: int, measured_s: float) -> bool:
        ran.append((self.context, streams, measured_s, self.arguments))
        self.reports.append({"windows": [window(streams, measured_s)]})
        return streams <= CAPACITY

    monkeypatch.setattr(Trials, "run", run)
    return ran


@pytest.fixture
def benchmark(monkeypatch):
    """Runs the command with these words."""
    from benchmarks import server as module

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["benchmarks/server.py", *words])
        return module.main()

    return run


def test_numbers_that_are_asked_for_are_tried_in_each_context(benchmark, trials, tmp_path, capsys):
    path = tmp_path / "server.json"
    assert benchmark("--contexts", "70,6", "70,0", "--streams", "4", "30", "--json", str(path)) == 0
    assert [trial[:3] for trial in trials] == [
        ("70,6", 4, 15.0),
        ("70,6", 30, 15.0),
        ("70,0", 4, 15.0),
        ("70,0", 30, 15.0),
    ]
    assert trials[0][3][2:] == ["--request-ms", "100.0", "--stagger-seconds", "5.0"]
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert [(result["context"], result["streams"], result["passed"]) for result in results[:2]] == [
        ("70,6", 4, True),
        ("70,6", 30, False),
    ]
    table = capsys.readouterr().out
    assert table.startswith(path.with_suffix(".md").read_text(encoding="utf-8").strip())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert rows[2][:3] == ["[70,6]", "4", "yes"] and rows[3][:3] == ["[70,6]", "30", "NO"]
    assert ["[70,6]", "4", "encoder", "0.25", "25 %", "2.00", "2.00", "1.00"] in rows


def test_the_largest_number_is_searched_and_its_confirmation_counts(benchmark, trials, tmp_path):
    path = tmp_path / "server.json"
    assert benchmark("--contexts", "70,6", "--json", str(path)) == 0
    assert [trial[1] for trial in trials] == [16, 32, 24, 20, 22, 21, 20]
    (result,) = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert (result["streams"], result["seconds"], result["passed"]) == (20, 60.0, True)


def test_texts_that_depend_on_the_neighbours_are_an_error(benchmark, trials, monkeypatch, capsys):
    honest = window(2, 1.0)
    spoilt = honest | {"words": honest["words"] | {"recordings_with_several_texts": 1}}
    monkeypatch.setattr(sys.modules[__name__], "window", lambda *_: spoilt)
    assert benchmark("--quick", "--streams", "2") == 1
    assert "1 recordings were transcribed in several ways" in capsys.readouterr().err


def test_not_a_single_stream_is_an_error(benchmark, trials, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules[__name__], "CAPACITY", 0)
    assert benchmark("--quick") == 1
    assert "not a single stream in real time" in capsys.readouterr().err
