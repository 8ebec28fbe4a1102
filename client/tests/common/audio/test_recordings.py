"""Every recording of the table is read whole, with the times of its file, and says what is missing."""

import shutil

import numpy as np
import pytest
import soundfile

from client.tests.helpers.recordings import RATE_HZ, RECORDINGS, decode, likeness, make
from penstock_common.audio.tracks import load

TALK = "tests/data/an4/flac/an406-fcaw-b.flac"
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


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda each: each.name)
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
