"""Random damage: never less audio than FFmpeg's command gives, never a loss without a remark, nothing left behind."""

import asyncio
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from client.tests.helpers.event_loop import until
from client.tests.helpers.recordings import RATE_HZ, RECORDINGS, decode, make
from penstock_gateway.audio import container
from penstock_gateway.audio.container import DECODERS, DecodedRecording
from penstock_gateway.errors import GatewayCode, GatewayError

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
TALK = "tests/data/an4/flac/an406-fcaw-b.flac"
FORMS = {"plain.wav", "a.flac", "cbr.mp3", "adts.aac", "fast.m4a", "fragmented.mp4", "ff.opus", "a.webm"}
MOST_LOST_S = 0.5


def damage(data: bytes, seed: int) -> bytes:
    """Flipped bits, or a cut, or bytes put in: where a file's audio is, not in its first hundreds of bytes."""
    rng = random.Random(seed)
    begin = min(2000, len(data) // 4)
    place = rng.randrange(begin, len(data))
    kind = rng.choice(["flips", "cut", "insertion", "missing"])
    if kind == "cut":
        return data[:place]
    if kind == "insertion":
        return data[:place] + rng.randbytes(rng.randrange(1, 400)) + data[place:]
    if kind == "missing":
        return data[:place] + data[place + rng.randrange(1, 400) :]
    flipped = bytearray(data)
    for _ in range(rng.randrange(1, 40)):
        flipped[rng.randrange(begin, len(data))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pytestconfig):
    """The undamaged files by name."""
    folder = tmp_path_factory.mktemp("whole")
    talk = folder / "talk.wav"
    soundfile.write(talk, soundfile.read(pytestconfig.rootpath / TALK)[0], RATE_HZ, subtype="PCM_16")
    return {each.name: make(each, {}, talk, folder) for each in RECORDINGS if each.name in FORMS}


async def read(path: Path) -> tuple[float, list]:
    """Seconds of audio without silence put in, and remarks."""
    with path.open("rb") as file:
        recording = DecodedRecording(file, "a", RATE_HZ, 60.0)
        samples = np.concatenate([block async for block in recording.blocks()])
    added_s = sum(each.lost_s for each in recording.remarks if each.code != "cut")
    return len(samples) / RATE_HZ - added_s, recording.remarks


async def check(form: str, data: bytes, whole_s: float, folder: Path, seed: int) -> None:
    path = folder / form
    path.write_bytes(damage(data, seed))
    ffmpeg_s = len(decode(path)) / RATE_HZ
    try:
        seconds, remarks = await read(path)
    except GatewayError as error:
        assert error.code is GatewayCode.AUDIO_INVALID
        assert "memory or time" not in str(error)
        assert ffmpeg_s < MOST_LOST_S, (form, seed, str(error))
        return
    assert seconds >= ffmpeg_s - MOST_LOST_S, (form, seed, remarks)
    assert remarks or seconds >= whole_s - MOST_LOST_S, (form, seed, seconds)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until_ended() -> None:
    """A process is reported to have ended a moment after its last block."""
    processes = container._processes.get(asyncio.get_running_loop())
    await until(lambda: processes is None or not processes.used["a"])


async def check_all(form: str, whole, folder: Path, seeds: range) -> None:
    await read(whole[form])  # starts the process
    await until_ended()
    before = descriptors(), len(os.listdir(f"/proc/{DECODERS.pid}/fd"))
    data, whole_s = whole[form].read_bytes(), len(decode(whole[form])) / RATE_HZ
    for seed in seeds:
        await check(form, data, whole_s, folder, seed)
    await until_ended()
    after = descriptors(), len(os.listdir(f"/proc/{DECODERS.pid}/fd"))
    # What earlier tests have left may be collected meanwhile.
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_a_damaged_recording_is_read_as_far_as_it_goes(form, whole, tmp_path):
    await check_all(form, whole, tmp_path, range(1))


@pytest.mark.nightly
@pytest.mark.parametrize("form", sorted(FORMS))
async def test_many_damaged_recordings(form, whole, tmp_path):
    await check_all(form, whole, tmp_path, range(1, 200))
