import io
import sys
from contextlib import closing

import numpy as np
import pytest
import soundfile

from penstock_client import AudioError, PackageError, load_audio, read_audio
from penstock_common.audio import sound_file


def tone(rate_hz, seconds=0.5, frequency_hz=440.0):
    return 0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(round(rate_hz * seconds)) / rate_hz)


class CountedFile(io.FileIO):
    """Notes how much is read at once."""

    def __init__(self, path):
        super().__init__(path)
        self.most_bytes = 0

    def read(self, size=-1):
        data = super().read(size)
        self.most_bytes = max(self.most_bytes, len(data))
        return data


@pytest.mark.parametrize("length", [bytes(4), b"\xff" * 4], ids=["zero", "unknown"])
def test_an_au_file_of_unknown_length_is_read_in_parts_and_closed(tmp_path, length):
    pytest.importorskip("av")
    path, samples = tmp_path / "tone.au", tone(16_000, seconds=60)
    soundfile.write(path, samples, 16_000, subtype="PCM_16")
    data = path.read_bytes()
    path.write_bytes(data[:8] + length + data[12:])
    file = CountedFile(path)
    with closing(sound_file.open_audio(file)) as reader:
        read = np.concatenate([block.samples[:, 0] for block in reader.blocks()])
    assert np.abs(read - samples).max() < 1e-4
    assert file.closed
    assert file.most_bytes < len(data) / 4


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
        (write_nothing, "has no audio"),
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


def test_a_cut_file_gives_its_samples_and_a_warning(tmp_path):
    path = tmp_path / "speech.wav"
    soundfile.write(path, tone(16_000), 16_000)
    path.write_bytes(path.read_bytes()[:-8000])
    with pytest.warns(UserWarning, match=r"speech\.wav: is cut: ends at 0\.25 s, 0\.25 s are missing"):
        assert read_audio(path).size == 4000
    assert load_audio(path).remarks == [("cut", 0.25, 0.25)]


@pytest.mark.parametrize("channel, index", [("left", 0), ("right", 1), (2, 1)])
def test_one_channel(tmp_path, channel, index):
    channels = np.stack([tone(16_000), tone(16_000, frequency_hz=600)], axis=1).astype(np.float32)
    soundfile.write(tmp_path / "call.wav", channels, 16_000, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(tmp_path / "call.wav", channel), channels[:, index])
    assert [track.channel for track in load_audio(tmp_path / "call.wav", "each").tracks] == ["left", "right"]


def test_each_channel_is_not_one_array(tmp_path):
    with pytest.raises(ValueError, match="use load_audio"):
        read_audio(tmp_path / "call.wav", "each")


def test_a_channel_that_the_file_does_not_have(tmp_path):
    soundfile.write(tmp_path / "mono.wav", tone(16_000), 16_000)
    with pytest.raises(AudioError, match=r"mono\.wav: has 1 channel, so there is no channel right"):
        read_audio(tmp_path / "mono.wav", "right")


def test_channels_that_cancel_give_a_warning(tmp_path):
    path = tmp_path / "call.wav"
    soundfile.write(path, np.stack([tone(16_000), -tone(16_000)], axis=1), 16_000)
    with pytest.warns(UserWarning, match=r"call\.wav: its channels cancel in the mix"):
        read_audio(path)


@pytest.mark.parametrize(
    "failure, match", [(ImportError("no package"), "pip install soundfile"), (OSError("no library"), "libsndfile1")]
)
def test_without_libsndfile_the_error_says_what_to_install(tmp_path, monkeypatch, failure, match):
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name == "soundfile":
                raise failure

    monkeypatch.delitem(sys.modules, "soundfile")
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.setattr(sound_file, "has_ffmpeg", lambda: False)
    (tmp_path / "speech.flac").write_bytes(b"fLaC")
    with pytest.raises(PackageError, match=f"^PACKAGE_MISSING: .*{match}"):
        read_audio(tmp_path / "speech.flac")
