"""Reading manifests for training."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.training.corpus import SAMPLE_RATE_HZ, read_manifest, read_samples


@pytest.fixture
def folder(tmp_path) -> Path:
    time_s = np.arange(8000) / 8000
    stereo = np.stack([np.sin(2 * np.pi * 440 * time_s), np.zeros(8000)], axis=1)
    soundfile.write(tmp_path / "stereo.wav", stereo, 8000)
    soundfile.write(tmp_path / "plain.wav", np.linspace(-0.5, 0.5, 1600), SAMPLE_RATE_HZ)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), SAMPLE_RATE_HZ)
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    return tmp_path


def test_reads_words_speakers_and_samples(folder):
    lines = [
        {"audio_filepath": "plain.wav", "text": "Go  NORTH", "speaker": 7},
        {"audio_filepath": str(folder / "stereo.wav"), "text": ""},
    ]
    manifest = folder / "train.jsonl"
    manifest.write_text(json.dumps(lines[0]) + "\n\n" + json.dumps(lines[1]) + "\n")
    first, second = read_manifest(manifest)
    assert first.words == ("go", "north") and first.speaker == "7" and first.name == "plain.wav"
    np.testing.assert_allclose(first.samples, np.linspace(-0.5, 0.5, 1600), atol=1e-4)
    assert second.words == () and second.speaker == second.name == str(folder / "stereo.wav")


def test_samples_become_mono_at_16_khz(folder):
    samples = read_samples(folder / "stereo.wav")
    assert samples.dtype == np.float32 and len(samples) == SAMPLE_RATE_HZ
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ)
    np.testing.assert_allclose(samples[500:-500], wanted[500:-500], atol=0.01)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"text": "a"}', "audio_filepath"),
        ('{"audio_filepath": "plain.wav"}', "text"),
        ('{"audio_filepath": "plain.wav", "text": 3}', "3, expected a string"),
        ('{"audio_filepath": 3, "text": "a"}', "TypeError"),
        ('{"audio_filepath": "gone.wav", "text": "a"}', "gone.wav"),
        ('{"audio_filepath": "broken.wav", "text": "a"}', "broken.wav"),
        ('{"audio_filepath": "empty.wav", "text": "a"}', "holds no audio"),
    ],
)
def test_errors_name_file_and_line(folder, line, said):
    manifest = folder / "train.jsonl"
    manifest.write_text('{"audio_filepath": "plain.wav", "text": "a"}\n' + line + "\n")
    with pytest.raises(ValueError) as caught:
        read_manifest(manifest)
    assert str(caught.value).startswith(f"{manifest}, line 2: ")
    assert said in str(caught.value)
