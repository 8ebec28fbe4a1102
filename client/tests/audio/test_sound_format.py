"""The first bytes decide the decoder; FFmpeg reads what libsndfile cannot."""

import sys

import numpy as np
import pytest

from client.tests.helpers.sound_files import media_file, sound_file
from penstock_client import AudioError, load_audio, read_audio
from penstock_client.audio.sound_file import open_sound, seconds
from penstock_client.audio.sound_format import MEDIA, SOUNDFILE, decoder_of, is_mpeg_audio, is_text
from penstock_client.errors import PackageError

TONE = (0.3 * np.sin(np.arange(48_000) * 2 * np.pi * 440 / 48_000)).astype(np.float32)  # 1 s at 48 kHz
FORMS = (("webm", "libopus"), ("ipod", "aac"), ("mp4", "aac"), ("adts", "aac"))


def test_the_first_bytes_decide_the_decoder():
    assert decoder_of(b"\xff\xfb\x90\x00") == SOUNDFILE  # MPEG audio, layer 3
    assert decoder_of(b"\xff\xf1\x50\x80") == MEDIA  # AAC
    assert decoder_of(b"\x00\x00\x00\x18ftypisom") == MEDIA
    assert decoder_of(b"\xff") is None
    assert decoder_of(b"\x00\x01\x02") is None


@pytest.mark.parametrize("rate_hz", [48_000, 44_100, 24_000, 8000])
def test_mpeg_audio_has_two_frames(rate_hz):
    data = sound_file(TONE, rate_hz, "MP3")
    assert is_mpeg_audio(data)
    assert not is_mpeg_audio(data[:4] + bytes(2000))
    assert not is_mpeg_audio(b"\xff\xff" * 1000)  # samples of -1


def test_text_is_no_audio():
    assert is_text(b"hello\n\tthere")
    assert not is_text(b"") and not is_text(b"hello\0") and not is_text("größer".encode())


@pytest.mark.parametrize(("form", "codec"), FORMS)
def test_a_file_of_ffmpeg_is_read_as_any_other(tmp_path, form, codec):
    pytest.importorskip("av")
    path = tmp_path / "a"  # the name does not matter
    path.write_bytes(media_file(form, codec, TONE, 48_000))
    samples = read_audio(path)
    assert abs(len(samples) / 16_000 - 1) < 0.1
    assert abs(np.abs(np.fft.rfft(samples[4000:12_000])).argmax() - 220) <= 1  # 440 Hz in half a second
    assert abs(seconds(path) - 1) < 0.1
    assert [track.channel for track in load_audio(path, "each").tracks] == ["mono"]


def test_blocks_have_any_size(tmp_path):
    pytest.importorskip("av")
    data = media_file("webm", "libopus", np.tile(TONE, 4), 48_000)
    with open_sound(data) as reader:
        blocks = list(reader.blocks())
    assert reader.problem is None and reader.channels == 1 and reader.rate_hz == 48_000
    assert len(blocks) > 1 and abs(sum(map(len, blocks)) / 48_000 - 4) < 0.1


def test_a_damaged_file_of_ffmpeg_is_named(tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "a.m4a"
    path.write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(100))
    with pytest.raises(AudioError, match=r"a\.m4a: cannot be decoded: "):
        read_audio(path)


def test_without_ffmpeg_the_error_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "a.m4a"
    path.write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(100))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(PackageError, match=r"needs FFmpeg, .*: pip install av \(the extra `media`\)"):
        read_audio(path)


def test_an_unknown_format_names_the_known_ones(tmp_path):
    path = tmp_path / "a.wav"
    path.write_text("this is no audio\n" * 100)
    with pytest.raises(AudioError, match=r"not a readable audio file: .*; accepted: wav, flac, .*`media` also webm"):
        read_audio(path)
