"""Audio files as samples, whole and block by block, and errors that name them."""

import io
import tracemalloc

import numpy as np
import pytest
import soundfile

from penstock.errors import AudioError
from penstock.frontend.audio_file import AudioBlocks, AudioTrack, audio_span, read_audio
from penstock_common.audio import sound_file
from penstock_common.audio.tracks import load


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
    for read in (lambda path: read_audio(path, 16000), audio_span, lambda path: AudioBlocks(path, 16000)):
        with pytest.raises(AudioError, match=rf"{name}: {match}"):
            read(tmp_path / name)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(sound_file, "_READ_BYTES", 4000)


def noise(frames: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (frames, channels)).astype(np.float32)


def read(track: AudioTrack, count: int) -> list[np.ndarray]:
    parts = []
    while not track.is_done:
        parts.append(track.read(count))
    return parts


@pytest.mark.parametrize("count", [1, 700, 1000, 3500, 100_000])
@pytest.mark.parametrize(("rate_hz", "channel"), [(16000, "mix"), (44100, "mix"), (8000, "right"), (48000, "each")])
def test_the_samples_are_those_of_the_whole_file(tmp_path, rate_hz, channel, count):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(3500, 2), rate_hz)
    whole = load(path, 16000, channel)
    blocks = AudioBlocks(path, 16000, channel)
    assert [track.channel for track in blocks.tracks] == [track.channel for track in whole.tracks]
    for track, expected in zip(blocks.tracks, whole.tracks, strict=True):
        parts = read(track, count)
        np.testing.assert_array_equal(np.concatenate(parts), expected.samples)
        assert all(len(part) == count for part in parts[:-1])
        assert len(parts[-1]), "the last samples are known to be the last"
    blocks.close()


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sound_file, "_READ_BYTES", 1 << 17)
    path = tmp_path / "hour.wav"
    with soundfile.SoundFile(path, "w", 16000, 1, "PCM_U8") as file:
        for _ in range(60):
            file.write(np.zeros(60 * 16000, np.float32))
    blocks = AudioBlocks(path, 16000)
    tracemalloc.start()
    try:
        samples = 0
        while not blocks.tracks[0].is_done:
            samples += len(blocks.tracks[0].read(8960))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        blocks.close()
    assert samples == 3600 * 16000
    assert peak_bytes < 4 * 2**20


def test_a_cut_file_is_read_to_its_end(tmp_path):
    path = tmp_path / "cut.wav"
    soundfile.write(path, noise(5000), 16000)
    path.write_bytes(path.read_bytes()[:-5000])
    blocks = AudioBlocks(path, 16000)
    assert sum(map(len, read(blocks.tracks[0], 300))) == 2500
    assert blocks.remarks == load(path, 16000).remarks == [("cut", 2500 / 16000, 2500 / 16000)]
    with pytest.warns(UserWarning, match=r"cut\.wav: is cut: ends at 0\.16 s, 0\.16 s are missing"):
        assert len(read_audio(path, 16000)) == 2500


def test_after_an_error_no_channel_goes_on(tmp_path):
    path = tmp_path / "a.wav"
    samples = noise(9000, 2)
    samples[4000, 0] = np.nan
    soundfile.write(path, samples, 16000, subtype="FLOAT")
    first, second = AudioBlocks(path, 16000, "each").tracks
    assert len(first.read(2000)) == 2000, "the samples before"
    for track in (first, second):
        with pytest.raises(AudioError, match=r"a\.wav: some samples are not finite numbers"):
            read(track, 2000)


def test_standard_input_is_read_once_for_all_channels(monkeypatch):
    content = io.BytesIO()
    soundfile.write(content, noise(3500, 2), 16000, format="WAV")
    content.seek(0)
    monkeypatch.setattr(sound_file, "_open_file", lambda path: content)
    tracks = AudioBlocks("-", 16000, "each").tracks
    assert [sum(map(len, read(track, 100))) for track in tracks] == [3500, 3500]
