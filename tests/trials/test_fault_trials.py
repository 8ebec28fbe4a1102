"""`trials/fault_trials.py`: which trials run, what is written, and that one failure ends no other; no server."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from trials import fault_trials


@pytest.fixture
def script(monkeypatch):
    """With two trials, of which `failing_streams` fails, and servers that are not there."""
    module = fault_trials
    ran = []

    def passing_streams(server, recordings, count):
        ran.append(("passing_streams", server.max_streams, count))
        return {"streams": count, "freed_s_max": 0.25, "memory_grown_kb_per_stream": 1.5, "NOT_FOUND": 3}

    def failing_streams(server, recordings, count):
        ran.append(("failing_streams", server.max_streams, count))
        raise AssertionError("2 problems: stream | 7:\n no final reply")

    @contextmanager
    def server(max_streams, idle_s):
        yield SimpleNamespace(max_streams=max_streams, idle_s=idle_s)

    monkeypatch.setattr(module, "SHARED_SERVER_TRIALS", {failing_streams: 1000, passing_streams: 10})
    monkeypatch.setattr(module, "server", server)
    monkeypatch.setattr(module, "make_recordings", lambda model: [])
    monkeypatch.setattr(module, "run_trial", lambda trial, *rest: trial(*rest))
    monkeypatch.setattr(module.server_trials, "stopped_under_load", lambda model, recordings: {"whole": 5})
    monkeypatch.setattr(
        module.server_trials,
        "lost_stage",
        lambda model, recordings, name, number: {"model": name, "signal": number.name, "reason": f"model {name} ended"},
    )
    monkeypatch.setattr(module.fleet, "TRIALS", (lambda model, recordings: {"moved": 5},))
    monkeypatch.setattr(module.server_trials, "restarted_server", lambda model, recordings: {"words": 200})
    module.ran = ran
    return module


def read(path: Path) -> dict[str, dict]:
    return {row["trial"]: row for row in json.loads(path.read_text(encoding="utf-8"))["trials"]}


def test_all_trials_run_and_one_that_fails_ends_no_other(script, tmp_path, capsys):
    path = tmp_path / "faults.json"
    assert script.main(["--scale", "0.1", "--json", str(path)]) == 1
    assert script.ran == [("failing_streams", 20, 100), ("passing_streams", 20, 2)]
    rows = read(path)
    assert len(rows) == 2 + 2 + 1 + 6
    assert rows["failing_streams"]["failed"].startswith("AssertionError: 2 problems")
    assert (rows["passing_streams"]["streams"], rows["passing_streams"]["freed_s_max"]) == (2, 0.25)
    assert all(row["took_s"] >= 0 and row["cpu_s"] >= 0 for row in rows.values())
    table = path.with_suffix(".md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == table
    lines = table.splitlines()
    assert "| **failed**: AssertionError: 2 problems: stream / 7: no final reply" in lines[2]
    assert "streams 2, freed at most 0.25 s, memory grown 1.50 KiB per stream, NOT_FOUND: 3" in lines[3]
    assert "| `lost_stage encoder SIGSTOP`" in table and "| reason model encoder ended" in table
    assert {line.count("|") for line in lines[:12]} == {4}
    circumstances = lines[-1]
    assert circumstances.startswith("`python -m trials.fault_trials --scale 0.1 --json ")
    document = json.loads(path.read_text(encoding="utf-8"))["machine"]
    assert all(str(document[name]) in circumstances for name in ("commit", "date", "hardware"))


def test_parts_of_a_run_add_up(script, tmp_path):
    path = tmp_path / "faults.json"
    assert script.main(["--only", "passing", "--json", str(path)]) == 0
    assert script.main(["--only", "encoder", "stopped", "--json", str(path)]) == 0
    assert list(read(path)) == [
        "passing_streams",
        "stopped_under_load",
        "lost_stage encoder SIGKILL",
        "lost_stage encoder SIGSTOP",
    ]
    assert script.ran == [("passing_streams", 20, 10)]
    line = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()[-1]
    runs = (f"python -m trials.fault_trials --only {names} --json {path}" for names in ("passing", "encoder stopped"))
    assert line.startswith("`" + "; ".join(runs).removesuffix(f" {path}"))


def test_what_another_commit_has_written_does_not_count(script, tmp_path):
    path = tmp_path / "faults.json"
    path.write_text(json.dumps({"machine": {"commit": "another", "command": ""}, "trials": [{"trial": "old"}]}))
    assert script.main(["--only", "passing", "--json", str(path)]) == 0
    assert list(read(path)) == ["passing_streams"]
