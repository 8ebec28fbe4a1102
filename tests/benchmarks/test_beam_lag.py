"""`python -m benchmarks.beam_lag`: lags of all chunks but each utterance's last."""

import json

from benchmarks import beam_lag
from tests.helpers.golden import AN4


def test_lags_are_counted(tmp_path, capsys):
    path = tmp_path / "lag.json"
    options = ["--context", "70,6", "--limit", "1", "--beams", "2", "--durations", "0", "1", "--json", str(path)]
    assert beam_lag.main(["--manifest", str(AN4 / "manifest.jsonl"), *options]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [(row["model"], row["search"]) for row in found] == [
        ("RNN-T", "alsd"), ("RNN-T", "aes"), ("TDT (random head)", "alsd"), ("TDT (random head)", "aes"),
    ]  # fmt: skip
    for row in found:
        assert sum(row["counts"].values()) == row["chunks"] > 0
        assert row["median"] <= row["p95"] <= row["max"]
    assert "forced blanks" in capsys.readouterr().out
