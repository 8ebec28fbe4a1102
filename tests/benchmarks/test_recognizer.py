"""`python -m benchmarks.recognizer`: every case, equal texts in batches of any size, shares of the stages."""

import json

import numpy as np

from benchmarks import baselines, recognizer


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


def test_speed_ups_by_case():
    results = [
        {"system": system, "context": [70, 6], "streams": 1, "seconds": seconds}
        for system, seconds in (("Penstock", [1.0, 2.0]), ("NeMo", [3.0, 4.0]))
    ]
    assert recognizer.speed_ups(results, "seconds").values == {"1 stream, [70,6]": {"NeMo": [3.0, 2.0]}}


def test_cases_of_offline_models_are_cut_from_speech():
    speech = [np.full(40_000, number, np.float32) for number in range(8)]
    short, long, many, equal = baselines.cases(baselines.CASES, speech, 5)
    assert (short.audio_s, long.audio_s, len(many.recordings)) == (15.0, 300.0, 5)
    assert [len(samples) / baselines.SAMPLE_RATE_HZ for samples in equal.recordings] == [15.0] * 5
    assert all(2.0 <= len(samples) / baselines.SAMPLE_RATE_HZ <= 30.0 for samples in many.recordings)
    assert [case.name for case in baselines.cases(["many"], speech, 5)] == [many.name]
