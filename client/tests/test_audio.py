import numpy as np
import pytest
import soundfile

from penstock_client import AudioError, read_audio


def tone(rate_hz, seconds=0.5, frequency_hz=440.0):
    return 0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(round(rate_hz * seconds)) / rate_hz)


@pytest.mark.parametrize("suffix, tolerance", [("wav", 1e-4), ("flac", 1e-4), ("ogg", 0.05)])
def test_formats(tmp_path, suffix, tolerance):
    path = tmp_path / f"tone.{suffix}"
    soundfile.write(path, tone(16_000), 16_000)
    samples = read_audio(path)
    assert samples.dtype == np.float32 and samples.shape == (8000,)
    assert np.abs(samples - tone(16_000)).max() < tolerance


@pytest.mark.parametrize("rate_hz", [8000, 11_025, 22_050, 44_100, 48_000])
def test_other_rates_and_channels_become_16_khz_mono(tmp_path, rate_hz):
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.stack([tone(rate_hz), np.zeros_like(tone(rate_hz))], axis=1), rate_hz, subtype="FLOAT")
    samples = read_audio(str(path))
    assert abs(samples.size - 8000) <= 1
    inner = slice(200, 7800)  # the filter rings at the ends
    assert np.abs(samples[inner] - 0.5 * tone(16_000)[inner]).max() < 5e-3


def write_nothing(path):
    path.write_bytes(b"")


def write_text(path):
    path.write_text("this is no audio\n" * 100)


def write_no_samples(path):
    soundfile.write(path, np.zeros(0), 16_000)


def write_nan(path):
    soundfile.write(path, np.array([0.0, np.nan]), 16_000, subtype="FLOAT")


def write_directory(path):
    path.mkdir()


@pytest.mark.parametrize(
    "prepare, reason",
    [
        (lambda path: None, "no such file"),
        (write_directory, "is a directory"),
        (write_nothing, "not a readable audio file"),
        (write_text, "not a readable audio file"),
        (write_no_samples, "has no audio"),
        (write_nan, "not finite"),
    ],
)
def test_unusable_file_is_named_with_the_reason(tmp_path, prepare, reason):
    path = tmp_path / "speech.wav"
    prepare(path)
    with pytest.raises(AudioError) as error:
        read_audio(path)
    assert str(error.value).startswith(f"AUDIO_INVALID: {path}: ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
