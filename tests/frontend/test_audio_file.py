"""Audio files of any format, rate and number of channels; unusable ones are named."""

import sys

import numpy as np
import pytest
import soundfile

from penstock.errors import AudioError, PackageError
from penstock.frontend.audio_file import audio_seconds, load_audio, read_audio
from penstock_client.audio import sound_file


def tone(rate: int, seconds: float = 0.5, hz: float = 440.0) -> np.ndarray:
    """A tone that fades in and out: [n] float32."""
    time = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hz * time) * np.sin(np.pi * time / seconds) ** 2).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_rates(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", tone(rate), rate, subtype="FLOAT")
    samples = read_audio(tmp_path / "a.wav", 16000)
    assert abs(len(samples) - 8000) <= 1
    np.testing.assert_allclose(samples[:7990], tone(16000)[:7990], atol=2e-3)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("gone.wav", None, "no such file"),
        ("empty.wav", b"", "has no audio$"),
        ("text.wav", b"hello, this is no audio" * 10, "not a readable audio file"),
        ("samples.raw", bytes(100), "not a readable audio file"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, match):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for read in (lambda path: read_audio(path, 16000), audio_seconds):
        with pytest.raises(AudioError, match=rf"{name}: {match}"):
            read(tmp_path / name)


def test_a_sample_rate_that_no_speech_has_is_rejected(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(16000), 999)
    with pytest.raises(AudioError, match=r"a\.wav: has a sample rate of 999 Hz; accepted: 1000 to 768000"):
        read_audio(tmp_path / "a.wav", 16000)


@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_file_without_samples_has_no_audio(tmp_path, rate):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(0, np.float32), rate)
    for read in (lambda path: read_audio(path, 16000), audio_seconds):
        with pytest.raises(AudioError, match=r"a\.wav: has no audio"):
            read(path)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_samples_that_are_not_finite_are_rejected(tmp_path, rate):
    samples = tone(rate)
    samples[100] = np.nan
    soundfile.write(tmp_path / "a.wav", samples, rate, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"a\.wav: some samples are not finite"):
        read_audio(tmp_path / "a.wav", 16000)


def test_a_cut_file_gives_its_samples_and_a_warning(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(16000), 16000)
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:-8000])
    with pytest.warns(UserWarning, match=r"a\.wav: is cut: ends at 0\.25 s, 0\.25 s are missing"):
        assert len(read_audio(tmp_path / "a.wav", 16000)) == 4000


STEREO = np.stack([tone(16000, hz=300), tone(16000, hz=500)], axis=1)


def test_each_channel(tmp_path):
    soundfile.write(tmp_path / "a.wav", STEREO, 16000, subtype="FLOAT")
    left, right = load_audio(tmp_path / "a.wav", 8000, "each").tracks
    assert (left.channel, right.channel) == ("left", "right")
    assert (left.samples.size, right.samples.size) == (4000, 4000)


def test_without_libsndfile_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setattr(sound_file, "has_ffmpeg", lambda: False)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(PackageError, match="pip install soundfile"):
        read_audio(tmp_path / "a.flac", 16000)
