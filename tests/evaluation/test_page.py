"""The HTML page: its data, recordings within its size, and recordings that are gone."""

import base64
import io
import json
import re

import numpy as np
import pytest
import soundfile

from penstock.errors import PenstockError
from penstock.evaluation import page
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import Normalizer
from penstock.evaluation.report import Conditions
from penstock.evaluation.runs import Outcome, RunResult, Variant, collect, parse_decoder
from penstock.model.config import AttentionContext

CONDITIONS = Conditions("a machine", 1, ["m.jsonl"], {"path": "<my> model"})
REFERENCES = ["one two", "</script><b>", "three four five"]


@pytest.fixture
def results(tmp_path) -> list[RunResult]:
    """Two runs over three recordings of 1 s, the second of which fails; the third has the most errors."""
    noise = np.random.default_rng(0).normal(0, 0.1, 16000)
    for i in range(3):
        soundfile.write(tmp_path / f"{i}.wav", noise, 16000)
    utterances = [
        Utterance(tmp_path / f"{i}.wav", 1.0, text, tmp_path / "m.jsonl", i + 1, "ada")
        for i, text in enumerate(REFERENCES)
    ]
    outcomes = [Outcome(0, "one to two"), Outcome(1, "", "lost"), Outcome(2, "three", remarks=("is loud",))]
    decoders = [parse_decoder(f"greedy:max_symbols={n}") for n in (1, 2)]
    return [collect(Variant(AttentionContext(70, 6), decoder), utterances, outcomes) for decoder in decoders]


def test_numbers_are_figures_in_both_texts(tmp_path, results):
    """The page has times of recordings, not of words."""
    outcomes = [Outcome(0, "ONE two"), Outcome(1, "</script><b>"), Outcome(2, "345 six")]
    alike = collect(results[0].variant, results[0].utterances, outcomes, normalizer=Normalizer(numbers="en"))
    _, data, _ = write(tmp_path, [alike])
    assert data["runs"][0]["utterances"][2] == {"edits": 1, "words": 1, "aligned": ["345", ["", "six"]]}


def write(tmp_path, results: list[RunResult], swept: str | None = None) -> tuple[str, dict, list[str]]:
    problems = page.write_page(tmp_path / "page.html", CONDITIONS, results, swept)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    return text, json.loads(re.search("const data = (.*);\n", text)[1]), problems


def test_errors_and_recordings_are_in_one_file(tmp_path, results):
    text, data, problems = write(tmp_path, results, "max_symbols")
    assert problems == []
    assert not re.findall(r"(?:src|href)=|url\(|@import", text.replace("xlink:href=", "").replace("url(#", "")), (
        "offline"
    )
    assert text.count("</script>") == 1
    assert "&lt;my&gt; model" in text
    assert "WER by max_symbols" in text and "WER by length" in text and "WER by decoder" in write(tmp_path, results)[0]
    first, failed, third = data["runs"][1]["utterances"]
    assert first == {"edits": 1, "words": 2, "aligned": ["one", ["", "to"], "two"]}
    assert failed == {"error": "lost"} and third["remarks"] == ["is loud"]
    for recording in data["recordings"]:
        samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(recording["opus"])))
        assert (len(samples), rate_hz, recording["speaker"]) == (16000, 16000, "ada")


def test_a_recording_that_is_gone_is_named(tmp_path, results):
    results[0].utterances[1].audio.unlink()
    _, data, (problem,) = write(tmp_path, results)
    assert problem.startswith("1 of 3 recordings cannot be read; the first: ") and "1.wav" in problem
    assert ["opus" in each for each in data["recordings"]] == [True, False, True]


def test_a_recording_of_one_sample_has_no_sound(tmp_path, results):
    soundfile.write(results[0].utterances[1].audio, np.zeros(1), 48000)
    _, data, problems = write(tmp_path, results)
    assert problems == [] and ["opus" in each for each in data["recordings"]] == [True, False, True]


def test_the_worst_have_their_recordings_where_not_all_fit(tmp_path, results, monkeypatch):
    text, data, _ = write(tmp_path, results)
    without = len(text.encode()) - sum(len(each["opus"]) for each in data["recordings"])
    monkeypatch.setattr(page, "_MAX_BYTES", without + 2_000)
    text, data, (problem,) = write(tmp_path, results)
    assert "2 of 3 recordings do not fit" in problem
    assert ["opus" in each for each in data["recordings"]] == [False, False, True]
    assert len(text.encode()) <= without + 2_000


def test_a_page_that_cannot_be_written_is_an_error(tmp_path, results):
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: .*: Is a directory"):
        page.write_page(tmp_path, CONDITIONS, results)
