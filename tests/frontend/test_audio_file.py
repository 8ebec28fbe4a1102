"""Audio files of any format, rate and number of channels; unusable ones are named."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.errors import AudioError, PackageError
from penstock.frontend.audio_file import audio_seconds, load_audio, read_audio


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
    with pytest.raises(AudioError, match=r"a\.wav: has a sample rate of 999 Hz; accepted: from 1000 Hz"):
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


def write_cut(path: Path, format: str, subtype: str, kept: float) -> None:
    """20 s of noise, of which the file ends after the share `kept` of its bytes."""
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 320_000), 16000, format=format, subtype=subtype)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])


@pytest.mark.parametrize("format", ["WAV", "WAVEX", "AU", "AIFF", "FLAC", "VORBIS", "OPUS"])
def test_a_truncated_file_is_named_and_its_audio_is_kept(tmp_path, format):
    path = tmp_path / "a"
    container = {"VORBIS": "OGG", "OPUS": "OGG"}.get(format, format)
    write_cut(path, container, format if container == "OGG" else "PCM_16", 1.0)
    assert load_audio(path, 16000).problem is None
    write_cut(path, container, format if container == "OGG" else "PCM_16", 0.6)
    audio = load_audio(path, 16000)
    assert audio.problem.startswith(f"{path}: is truncated")
    assert 5.0 < len(audio.tracks[0].samples) / 16000 < 15.0
    with pytest.raises(AudioError, match=r"a: is truncated.*: ends after "):
        read_audio(path, 16000)


@pytest.mark.parametrize("channels", [1, 2])
def test_audio_right_before_the_damage_is_kept(tmp_path, channels):
    path, noise = tmp_path / "a.flac", np.random.default_rng(0).normal(0, 0.1, (48_000, channels))
    soundfile.write(path, noise, 16000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (track,) = load_audio(path, 16000).tracks
    assert 1.0 < len(track.samples) / 16000 < 1.5
    expected = noise[: len(track.samples)].mean(axis=1)
    np.testing.assert_allclose(track.samples, expected, atol=1e-4)


@pytest.mark.parametrize("stated", [0xFFFFFFFF, 0x80000000, 0x7FFFFF00, 0x7FFFF000])
def test_a_size_that_the_writer_did_not_know_is_no_truncation(tmp_path, stated):
    """As ffmpeg, arecord and sox write to a pipe."""
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(16000), 16000)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"data" + struct.pack("<I", 16000), b"data" + struct.pack("<I", stated)))
    audio = load_audio(path, 16000)
    assert (audio.problem, audio.tracks[0].samples.size) == (None, 8000)


def write_flac_of_unknown_length(path: Path, samples: np.ndarray, kept: float = 1.0) -> None:
    """As flac and ffmpeg write to a pipe: the number of samples in the header is 0."""
    soundfile.write(path, samples, 16000, format="FLAC")
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # 36 bits of the block STREAMINFO
    content[22:26] = bytes(4)
    path.write_bytes(content[: int(kept * len(content))])


@pytest.mark.parametrize("count", [8000, 65_536, 70_000])
def test_flac_of_unknown_length_is_no_truncation(tmp_path, count):
    path, noise = tmp_path / "a.flac", np.random.default_rng(0).normal(0, 0.1, count)
    write_flac_of_unknown_length(path, noise)
    np.testing.assert_allclose(read_audio(path, 16000), noise, atol=1e-4)
    assert audio_seconds(path) == count / 16000
    write_flac_of_unknown_length(path, noise, kept=0.7)
    audio = load_audio(path, 16000)
    assert "a.flac: is damaged after" in audio.problem
    assert 0.3 * count < len(audio.tracks[0].samples) < count


STEREO = np.stack([tone(16000, hz=300), tone(16000, hz=500)], axis=1)


def test_each_channel(tmp_path):
    soundfile.write(tmp_path / "a.wav", STEREO, 16000, subtype="FLOAT")
    left, right = load_audio(tmp_path / "a.wav", 8000, "each").tracks
    assert (left.channel, right.channel) == ("left", "right")
    assert (left.samples.size, right.samples.size) == (4000, 4000)


@pytest.mark.parametrize(
    ("failure", "match"), [(ImportError("no package"), "pip install soundfile"), (OSError("no library"), "libsndfile1")]
)
def test_without_libsndfile_the_error_says_what_to_install(tmp_path, monkeypatch, failure, match):
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name == "soundfile":
                raise failure

    monkeypatch.delitem(sys.modules, "soundfile")
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(PackageError, match=match):
        read_audio(tmp_path / "a.wav", 16000)
