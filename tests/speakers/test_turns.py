"""Turns, the speaker of a word, and RTTM; `penstock transcribe --speakers` in all formats, and what it rejects."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.speaker_models import write_speakers
from penstock.cli import main
from penstock.pipeline.results.words import Word
from penstock.speakers.importer import import_speakers
from penstock.speakers.turns import Turn, rttm, speakers_of, turns
from penstock.transcription import result_files
from penstock.transcription.files import FileSegment, FileTranscript
from tests.helpers.golden import AN4

pytestmark = pytest.mark.usefixtures("uncompiled")
RECORDINGS = sorted(map(str, (AN4 / "flac").glob("*.flac")))[:2]


def test_turns_begin_and_end_with_a_probability_above_a_half():
    probabilities = torch.zeros(10, 3)
    probabilities[2:5, 1], probabilities[4:10, 0], probabilities[0, 2], probabilities[7, 2] = 0.9, 0.51, 0.5, 0.6
    assert turns(probabilities, 0.01, start_s=5.0) == [
        Turn(2, 5.02, 5.05), Turn(1, 5.04, 5.1), Turn(3, 5.07, 5.08),
    ]  # fmt: skip
    assert turns(probabilities[:0], 0.01) == []


def test_a_word_has_the_speaker_with_the_largest_mean():
    probabilities = torch.zeros(100, 2)
    probabilities[:40, 0], probabilities[35:, 1] = 0.8, 0.7
    times = [(0, 100), (300, 400), (320, 420), (990, 990), (5000, 5100)]
    assert speakers_of(times, probabilities.numpy(), 10) == [1, 1, 1, 2, 2]
    later = [(begin + 3000, end + 3000) for begin, end in times]
    assert speakers_of(later, probabilities.numpy(), 10, start_ms=3000) == [1, 1, 1, 2, 2]
    assert speakers_of([(0, 10)], probabilities[:0].numpy(), 10) == [1]


def test_a_word_begins_with_its_own_frame():
    """Times are whole frames: 1.15 s / 0.01 s is less than 115 in floating point."""
    times = [(begin, begin + 10) for begin in range(0, 3000, 10)]
    alternating = torch.eye(2).repeat(150, 1).numpy()
    for start_ms in (0.0, 1000 * 1.15):
        later = [(begin + start_ms, end + start_ms) for begin, end in times]
        assert speakers_of(later, alternating, 1000 * 0.01, start_ms) == [1, 2] * 150


def test_rttm_has_ten_fields():
    (line,) = rttm("a call", [Turn(2, 1.5, 2.25)]).splitlines()
    assert line.split() == ["SPEAKER", "a_call", "1", "1.500", "0.750", "<NA>", "<NA>", "speaker_2", "<NA>", "<NA>"]


@pytest.fixture
def bundle(speaker_bundle) -> str:
    return str(speaker_bundle.directory)


def test_subtitles_begin_a_cue_with_each_speaker():
    words = [Word(f"w{i}", 400 * i, 400 * i + 300) for i in range(6)]
    transcript = FileTranscript("a.wav", words=words, segments=[FileSegment("", 4), FileSegment("", 2)])
    transcript.speakers = [1, 1, 2, 2, 2, 1]
    texts = [line for line in result_files._WRITERS["srt"](transcript).splitlines() if line.startswith("Speaker")]
    assert texts == ["Speaker 1: w0 w1", "Speaker 2: w2 w3 w4", "Speaker 1: w5"]


@pytest.mark.parametrize("model", ["an4-rnnt-hybrid", "an4-offline"])
def test_files_with_speakers(bundle, tmp_path, model):
    path = str(Path(__file__).parents[2] / "models" / model)
    command = ("transcribe", "--model", path, "--speakers", bundle, "--out", str(tmp_path), "--format", "json,rttm")
    assert main([*command, "--processes", "1", *RECORDINGS]) == 0  # a process with threads of gRPC must not fork
    for recording in RECORDINGS:
        document = json.loads((tmp_path / f"{Path(recording).stem}.json").read_text())
        assert {word["speaker"] for word in document["words"]} <= set(range(1, 9))
        assert all(0 <= turn["start_s"] < turn["end_s"] <= document["audio_s"] for turn in document["turns"])
        lines = (tmp_path / f"{Path(recording).stem}.rttm").read_text().splitlines()
        assert [float(line.split()[3]) for line in lines] == [turn["start_s"] for turn in document["turns"]]


def test_figures_keep_the_turns_and_have_the_times_of_the_words_that_they_replace(bundle, tmp_path):
    command = ("transcribe", "--speakers", bundle, "--processes", "1", "--format", "json,rttm", *RECORDINGS)
    for numbers in ("words", "figures"):
        assert main([*command, "--numbers", numbers, "--out", str(tmp_path / numbers)]) == 0
    replaced = 0
    for stem in (Path(recording).stem for recording in RECORDINGS):
        spoken_rttm, rttm = ((tmp_path / numbers / f"{stem}.rttm").read_text() for numbers in ("words", "figures"))
        assert rttm == spoken_rttm
        documents = (json.loads((tmp_path / numbers / f"{stem}.json").read_text()) for numbers in ("words", "figures"))
        spoken, written = (document["words"] for document in documents)
        for word in written:
            covered = [each for each in spoken if word["start_ms"] <= each["start_ms"] < word["end_ms"]]
            assert (word["start_ms"], word["end_ms"]) == (covered[0]["start_ms"], covered[-1]["end_ms"])
            assert word["word"] == covered[0]["word"] if len(covered) == 1 else word["word"].isdigit()
            replaced += len(covered) - 1
    assert replaced > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "rttm", "--out", "x", RECORDINGS[0]], "--format rttm needs --speakers"),
        (["--speakers", "models/an4-rnnt-hybrid", RECORDINGS[0]], "it is of a recognizer"),
        (["--speakers", "BUNDLE", "-"], "--speakers reads a file twice"),
        (["--model", "BUNDLE", RECORDINGS[0]], "it is of a speaker model"),
    ],
)
def test_what_is_rejected(bundle, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main(["transcribe", *(bundle if each == "BUNDLE" else each for each in arguments)]) == 1
    assert message in capsys.readouterr().err


def test_a_model_without_numbers_leaves_the_words(tmp_path, capsys):
    broken = write_speakers(tmp_path / "source")
    state = load_file(broken / "model.safetensors")
    state["model.audio_tower.layers.0.mlp.fc2.weight"] *= 1e38
    save_file(state, broken / "model.safetensors")
    bundle = import_speakers(broken, tmp_path / "bundle").directory
    assert main(["transcribe", "--speakers", str(bundle), RECORDINGS[0]]) == 1
    output = capsys.readouterr()
    assert output.out.strip()
    assert "the speaker model computes NaN" in output.err
