"""`python -m benchmarks.large` with tiny models: every part and system."""

import json

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")
pytest.importorskip("sherpa_onnx", reason="needs locks/sherpa.txt")

from benchmarks import baselines, large

pytestmark = pytest.mark.oracle


def test_the_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(large, "prepare_process", lambda threads: None)
    monkeypatch.setattr(baselines, "_LONG_S", 20)
    sizes = ["--layers", "2", "--width", "512", "--rounds", "1", "--streams", "1", "2", "--files", "2"]
    path = tmp_path / "large.json"
    large.main([str(tmp_path / "models"), *sizes, "--contexts", "70,1", "--json", str(path)])
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [result["case"] for result in document["results"]] == [
        *(f"{part}, {streams}, [70,1]" for part in ("encoder", "recognizer") for streams in ("1 stream", "2 streams")),
        "one file of 15 s",
        "one file of 5 min",
        "2 files of 15 s",
    ]
    for result in document["results"]:
        assert set(result["cpu_seconds"]) == set(large.SYSTEMS)
        assert all(seconds > 0 for rounds in result["cpu_seconds"].values() for seconds in rounds)
        assert set(result["letters"]) == (set() if result["case"].startswith("encoder") else set(large.SYSTEMS))
    assert [each["precision"] for each in document["memory"]] == ["float32", "int8"]
    for each in document["memory"]:
        assert 0 < each["before_mib"] < each["loaded_mib"] <= each["loading_peak_mib"] <= each["peak_mib"]
    assert "ONNX int8 / int8" in capsys.readouterr().out
