"""`python -m benchmarks.recognizer`: every case, equal texts in batches of any size, shares of the stages."""

import json

import pytest

from benchmarks import exports, recognizer


@pytest.mark.nightly
def test_the_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recognizer, "prepare_process", lambda threads: None)
    path = tmp_path / "recognizer.json"
    recognizer.main(["--quick", "--contexts", "70,6", "--streams", "1", "2", "--json", str(path)])
    one, two = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert (one["system"], one["context"], one["streams"], two["streams"]) == ("Penstock", [70, 6], 1, 2)
    assert two["audio_s"] == 2 * one["audio_s"]
    for result in (one, two):
        assert result["rtfx"] == result["audio_s"] / result["seconds"][0]
        assert (result["words"], result["word_errors"]) == (34, 2)
        assert 0 < sum(result["share"].values()) <= 1
    assert "Penstock's speed-up" in capsys.readouterr().out


def test_the_exports_of_its_baselines(capsys):
    with pytest.raises(SystemExit):
        exports.main(["large", "--help"])
    assert "--layers" in capsys.readouterr().out
