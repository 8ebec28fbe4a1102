"""`python -m benchmarks.recognizer`: every case, equal texts in batches of any size, shares of the stages."""

import json

import pytest

from benchmarks import recognizer


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


def results_of(path) -> dict[str, set[str]]:
    """The systems of each case."""
    found: dict[str, set[str]] = {}
    for result in json.loads(path.read_text(encoding="utf-8"))["results"]:
        assert all(seconds > 0 for seconds in result["cpu_seconds"])
        found.setdefault(result.get("case", ""), set()).add(result["system"])
    return found


@pytest.mark.oracle
def test_large_models_beside_sherpa(tmp_path, monkeypatch):
    pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")
    pytest.importorskip("sherpa_onnx", reason="needs locks/sherpa.txt")
    from benchmarks import exports

    monkeypatch.setattr(recognizer, "prepare_process", lambda threads: None)
    assert exports.main(["large", str(tmp_path), "--layers", "2", "--width", "512"]) == 0
    common = ["--quick", "--precisions", "int8", "float32", "--json", str(tmp_path / "found.json")]
    sherpa = [str(tmp_path / "streaming" / precision) for precision in ("int8", "float32")]
    model = [
        "--model",
        str(tmp_path / "streaming" / "bundle"),
        "--seconds",
        "1",
        "--contexts",
        "70,1",
        "--streams",
        "2",
    ]
    recognizer.main([*common, *model, "--with-sherpa", *sherpa])
    systems = {f"{name} {precision}" for name in ("Penstock", "sherpa-onnx") for precision in ("int8", "float32")}
    assert results_of(tmp_path / "found.json") == {"": systems}
    recognizer.main([*common, "--offline", str(tmp_path / "offline"), "--cases", "short"])
    assert results_of(tmp_path / "found.json") == {"one file of 15 s": systems}
