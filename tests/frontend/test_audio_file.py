"""Audio files of any format, rate and number of channels; unusable ones are named."""

import numpy as np
import pytest
import soundfile

from penstock.errors import AudioError
from penstock.frontend.audio_file import read_audio
from tests.helpers.golden import golden_utterances


def tone(rate: int, seconds: float = 0.5, hz: float = 440.0) -> np.ndarray:
    """A tone that fades in and out: [n] float32."""
    time = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hz * time) * np.sin(np.pi * time / seconds) ** 2).astype(np.float32)


@pytest.mark.parametrize(
    ("suffix", "subtype", "tolerance"),
    [
        ("wav", "PCM_16", 1e-4),
        ("wav", "PCM_24", 1e-6),
        ("wav", "FLOAT", 0.0),
        ("wav", "ULAW", 0.02),
        ("flac", "PCM_16", 1e-4),
        ("ogg", "VORBIS", 0.05),
    ],
)
def test_formats(tmp_path, suffix, subtype, tolerance):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(16000), 16000, subtype=subtype)
    samples = read_audio(path, 16000)
    assert (samples.dtype, samples.ndim, samples.flags.c_contiguous) == (np.float32, 1, True)
    np.testing.assert_allclose(samples, tone(16000), atol=tolerance)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_rates(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", tone(rate), rate, subtype="FLOAT")
    samples = read_audio(tmp_path / "a.wav", 16000)
    assert abs(len(samples) - 8000) <= 1
    np.testing.assert_allclose(samples[:7990], tone(16000)[:7990], atol=2e-3)


def test_another_rate_than_16_khz(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(16000), 16000)
    assert len(read_audio(tmp_path / "a.wav", 8000)) == 4000


@pytest.mark.parametrize("gains", [(1.0, 0.0), (1.0, 1.0), (0.3, 0.6, 0.9)])
def test_channels_are_averaged(tmp_path, gains):
    channels = np.stack([gain * tone(16000) for gain in gains], axis=1)
    soundfile.write(tmp_path / "a.wav", channels, 16000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav", 16000), np.mean(gains) * tone(16000), atol=1e-6)


@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_file_without_samples_is_empty_audio(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", np.zeros(0, np.float32), rate)
    assert read_audio(str(tmp_path / "a.wav"), 16000).shape == (0,)


def test_real_speech():
    path = golden_utterances()[0].path
    assert len(read_audio(path, 16000)) == soundfile.info(path).frames


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("gone.wav", None, "no such file"),
        ("empty.wav", b"", "not a readable audio file"),
        ("text.wav", b"hello, this is no audio" * 10, "not a readable audio file"),
        ("samples.raw", bytes(100), "not a readable audio file"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, match):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AudioError, match=rf"{name}: {match}"):
        read_audio(tmp_path / name, 16000)


def test_a_directory_is_no_audio(tmp_path):
    with pytest.raises(AudioError, match="not a readable audio file"):
        read_audio(tmp_path, 16000)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_samples_that_are_not_finite_are_rejected(tmp_path, rate):
    samples = tone(rate)
    samples[100] = np.nan
    soundfile.write(tmp_path / "a.wav", samples, rate, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"a\.wav: some samples are not finite"):
        read_audio(tmp_path / "a.wav", 16000)
