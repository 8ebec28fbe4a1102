"""`trials/fault_trials.py`: which trials run, and that one failure ends no other; no server."""

import json

from trials import fault_trials
from trials.fault_trials import Trial


def test_all_trials_run_and_one_that_fails_ends_no_other(monkeypatch, tmp_path, capsys):
    def fails(model, recordings):
        raise AssertionError("2 problems")

    trials = [Trial("fails", fails), Trial("passes", lambda model, recordings: {"moved": 5})]
    monkeypatch.setattr(fault_trials, "make_recordings", lambda model: [])
    assert len(list(fault_trials.all_trials())) == 3 + len(fault_trials.fleet.TRIALS) + 6
    monkeypatch.setattr(fault_trials, "all_trials", lambda: trials)
    path = tmp_path / "faults" / "faults.json"
    assert fault_trials.main(["--json", str(path)]) == 1
    failed, passed = json.loads(path.read_text(encoding="utf-8"))["trials"]
    assert failed["failed"] == "AssertionError: 2 problems"
    assert (passed["trial"], passed["moved"]) == ("passes", 5)
    assert fault_trials.main(["--only", "pass"]) == 0
    assert fault_trials.main(["--only", "none"]) == 2
    assert "no trial is called none" in capsys.readouterr().err
