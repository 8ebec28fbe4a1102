"""Every recording of the table is read whole, with the times of its file, and says what is missing."""

import shutil

import numpy as np
import pytest
import soundfile

from client.tests.helpers.recordings import RATE_HZ, RECORDINGS, decode, likeness, make
from penstock_common.audio.tracks import load

TALK = "tests/data/an4/flac/an406-fcaw-b.flac"
LIKE_OTHERS = {
    "u8.wav", "s24.wav", "f64.wav", "alaw.wav", "surround.wav", "size+2.wav", "unknown.wav", "zero-list.wav",
    "id3v1.wav", "mp3.wav", "g722.wav", "g726.wav", "ima.wav", "tagged.mp3", "abr.mp3", "joined.mp3", "torn.mp3",
    "layer2.mp2", "info.mp3", "joined.aac", "eight.m4a", "stereo.m4b", "a.3gp", "a.mov", "fast.mov", "half.mov",
    "damaged.mp4", "ff.opus", "joined.ogg", "changing.opus", "offset.opus", "half.ogg", "speex.ogg", "flac.ogg",
    "vorbis.webm", "damaged.webm", "joined.webm", "pcm.mkv", "a.mka", "id3v1.flac", "id3v2.flac", "zeros.flac",
    "half.flac", "a.aifc", "unknown.au", "mulaw.au", "a.caf", "pipe.caf", "alac.caf", "opus.caf", "a.rf64", "half.rf64",
    "a.w64", "a.sph", "a.sox", "a.ac3", "a.wma", "a.avi", "a.flv", "a.ts", "half.ts", "a.mpg", "six.tta", "a.tta",
    "a.wv", "a.voc", "late.mkv", "changing.mp3",
}  # fmt: skip
"""Others of the table are read by the same readers."""
MOST_LOST_S = 0.15
"""Encodings begin or end with some silence of their own, and versions of FFmpeg differ in it."""


@pytest.fixture(scope="module")
def talk(tmp_path_factory, pytestconfig):
    path = tmp_path_factory.mktemp("talk") / "talk.wav"
    soundfile.write(path, soundfile.read(pytestconfig.rootpath / TALK)[0], RATE_HZ, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def files():
    """The files so far, of which others are made."""
    return {}


@pytest.mark.parametrize(
    "recording",
    [pytest.param(each, id=each.name, marks=[pytest.mark.nightly] * (each.name in LIKE_OTHERS)) for each in RECORDINGS],
)
def test_a_recording_is_read_whole(recording, files, talk, tmp_path):
    pytest.importorskip("av")
    if missing := [tool for tool in sorted({"ffmpeg", *recording.tools}) if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    try:
        path = make(recording, files, talk, tmp_path)
    except KeyError as error:
        pytest.skip(f"needs {error}")
    audio = load(path, RATE_HZ)
    (samples,) = (track.samples for track in audio.tracks)
    codes = [remark.code for remark in audio.remarks]
    assert codes == list(recording.remarks) or (recording.remarks == ["damaged"] and set(codes) == {"cut"})
    assert audio.start_s == pytest.approx(recording.start_s, abs=0.1)
    expected = decode(path) if recording.talks is None else repeated(soundfile.read(talk)[0], recording.talks)
    without_holes_s = len(samples) / RATE_HZ - sum(each.lost_s for each in audio.remarks if each.code == "gap")
    assert without_holes_s >= len(expected) / RATE_HZ - MOST_LOST_S
    lost_s = sum(each.lost_s for each in audio.remarks if each.code == "damaged")
    assert without_holes_s - lost_s <= len(expected) / RATE_HZ + MOST_LOST_S
    if not {"gap", "damaged"} & set(recording.remarks):
        parts = max(1, round(recording.talks or 1))
        for one, other in zip(np.array_split(samples, parts), np.array_split(expected, parts), strict=True):
            assert likeness(one, other) > 0.8


def repeated(samples: np.ndarray, times: float) -> np.ndarray:
    return samples[: round(times * len(samples))] if times < 1 else np.tile(samples, round(times))
