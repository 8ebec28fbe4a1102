"""The first bytes show the format; FFmpeg reads nearly all, libsndfile without it what it reads whole."""

from contextlib import closing

import numpy as np
import pytest

from client.tests.helpers.sound_files import media_file, sound_file
from penstock_client import AudioError, PackageError, load_audio, read_audio
from penstock_common.audio import sound_file as opening
from penstock_common.audio.formats import HEAD_BYTES, MPEG_BYTES, container_name, is_container, is_stream, is_text
from penstock_common.audio.sound_file import SoundReader, open_audio

NOISE = np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32)
STREAMS = [("mp2", "mp2"), ("mp3", "libmp3lame"), ("adts", "aac"), ("mpegts", "aac")]


@pytest.fixture
def no_ffmpeg(monkeypatch):
    monkeypatch.setattr(opening, "has_ffmpeg", lambda: False)


@pytest.mark.parametrize("rate_hz", [48_000, 44_100, 16_000])
@pytest.mark.parametrize(("form", "codec"), STREAMS)
def test_frames_in_a_row_are_a_stream(form, codec, rate_hz):
    pytest.importorskip("av")
    data = media_file(form, codec, NOISE, rate_hz)
    data = data[data.index(b"\xff") :] if form == "mp3" else data  # without its tag
    assert is_stream(data[:MPEG_BYTES])
    if form != "mpegts":
        assert is_stream((b"junk" * 100 + data)[:MPEG_BYTES])
        assert not is_stream(data[:4] + bytes(MPEG_BYTES))


@pytest.mark.parametrize("level", [0, 2, 4, 8, 15, 60, 1000, 10_000])
def test_samples_are_no_stream(level):
    """Noise, from a silent line to full volume, and of constants."""
    rng = np.random.default_rng(0)
    for _ in range(1 if level == 0 else 20):
        samples = np.rint(rng.normal(0, level, 1 << 15)).clip(-32768, 32767)
        assert not is_stream(samples.astype("<i2").tobytes())
    assert not is_stream(np.full(2000, -1 - level, "<i2").tobytes())


def test_a_container_begins_with_its_name():
    assert is_container(b"\x00\x00\x00\x18ftypisom") and is_container(sound_file(NOISE, form="FLAC")[:HEAD_BYTES])
    assert not is_container(bytes(HEAD_BYTES)) and not is_container(b"")


def test_text_is_no_audio():
    assert is_text(b"hello\n\tthere")
    assert not is_text(b"") and not is_text(b"hello\0") and not is_text("größer".encode())


def test_blocks_have_any_size():
    pytest.importorskip("av")
    with closing(open_audio(media_file("webm", "libopus", np.tile(NOISE, 4), 48_000))) as reader:
        blocks = list(reader.blocks())
    assert (reader.remarks, reader.channels, reader.start_s) == ([], 1, 0.0)
    assert len(blocks) > 1 and {block.rate_hz for block in blocks} == {48_000}
    assert abs(sum(len(block.samples) for block in blocks) / 48_000 - 4) < 0.1


@pytest.mark.parametrize(
    "content",
    [
        sound_file(NOISE, form="MP3"),
        sound_file(NOISE, form="OGG"),
        b"\x00\x00\x00\x18ftypisom" + bytes(100),
        b"\x1aE\xdf\xa3" + bytes(100),
    ],
    ids=["mp3", "ogg", "m4a", "webm"],
)
def test_without_ffmpeg_what_libsndfile_does_not_read_whole_names_the_extra(tmp_path, no_ffmpeg, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(PackageError, match=r"needs FFmpeg, .*: pip install av \(the extra `media`\)"):
        read_audio(path)


@pytest.mark.parametrize("form", ["FLAC", "AIFF", "AU", "CAF", "W64"])
def test_without_ffmpeg_libsndfile_reads_the_others(tmp_path, no_ffmpeg, form):
    path = tmp_path / "a"
    path.write_bytes(sound_file(NOISE, form=form, subtype="PCM_16"))
    with closing(open_audio(path)) as reader:
        assert isinstance(reader, SoundReader)
    audio = load_audio(path)
    np.testing.assert_allclose(audio.tracks[0].samples, NOISE, atol=1e-4)
    assert not audio.remarks


def stating(flac, frames):
    """A FLAC file whose header states this number of samples; 0: not known, as programs write it to a pipe."""
    content = bytearray(flac)
    content[21] &= 0xF0  # 36 bits of the block STREAMINFO
    content[22:26] = frames.to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize("count", [8000, 65_536, 70_000])
def test_flac_of_unknown_length_needs_ffmpeg(tmp_path, monkeypatch, count):
    path, samples = tmp_path / "a.flac", np.tile(NOISE, 2)[:count]
    content = stating(sound_file(samples, form="FLAC"), 0)
    path.write_bytes(content)
    audio = load_audio(path)
    np.testing.assert_allclose(audio.tracks[0].samples, samples, atol=1e-4)
    assert not audio.remarks
    path.write_bytes(content[: len(content) * 7 // 10])
    audio = load_audio(path)
    assert [remark.code for remark in audio.remarks] == ["cut"]
    assert 0.3 * count < len(audio.tracks[0].samples) < count
    monkeypatch.setattr(opening, "has_ffmpeg", lambda: False)
    with pytest.raises(PackageError, match="needs FFmpeg"):
        load_audio(path)


def test_flac_that_states_too_little(tmp_path, monkeypatch):
    """FFmpeg reads all of it, libsndfile what is stated."""
    path = tmp_path / "a.flac"
    path.write_bytes(stating(sound_file(NOISE, form="FLAC"), 8192))
    audio = load_audio(path)
    assert (audio.tracks[0].samples.size, audio.remarks) == (48_000, [])
    monkeypatch.setattr(opening, "has_ffmpeg", lambda: False)
    audio = load_audio(path)
    np.testing.assert_allclose(audio.tracks[0].samples, NOISE[:8192], atol=1e-4)
    assert [(remark.code, remark.start_s) for remark in audio.remarks] == [("unread", 0.512)]


def test_a_file_without_audio_is_named(tmp_path):
    path = tmp_path / "a.m4a"
    path.write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(100))
    with pytest.raises(AudioError, match=r"a\.m4a: not a readable audio file: "):
        read_audio(path)


def test_a_recording_is_known_by_its_name():
    assert container_name(b"\x1aE\xdf\xa3" + bytes(8)) == "WebM or Matroska"
    assert container_name(b"ID3\x04\0\0\0\0\0\x0a\0\0") == "MP3"
    assert container_name(b"ID3\x04\0\0\xff\0\0\x0a\0\0") is None
