import io
import os
import threading

import numpy as np
import pytest
import soundfile

from client.tests.helpers.fake_servers import eventually
from client.tests.helpers.sound_files import sound_file
from penstock_client import AudioError, AudioPipe, RawFormat
from penstock_client.audio.audio_pipe import is_pipe

NOISE = np.random.default_rng(0).uniform(-0.9, 0.9, 24_000).astype(np.float32)  # 1.5 s


def wav(samples=NOISE, rate_hz=16_000, subtype="FLOAT", container="WAV"):
    return sound_file(samples, rate_hz, container, subtype)


@pytest.fixture
def piped(fifo):
    """A FIFO into which a thread writes these bytes, in pieces."""
    threads = []

    def piped(content, piece_bytes=None):
        def write():
            with fifo.open("wb", buffering=0) as file:
                for start in range(0, max(1, len(content)), piece_bytes or max(1, len(content))):
                    file.write(content[start : start + piece_bytes] if piece_bytes else content)

        threads.append(threading.Thread(target=write, daemon=True))
        threads[-1].start()
        return fifo

    yield piped
    for thread in threads:
        thread.join(60)


def read(path, **options):
    """All samples, and the pipe."""
    with AudioPipe(path, **options) as pipe:
        return np.concatenate([np.zeros(0, np.float32), *pipe]), pipe


@pytest.mark.parametrize("piece_bytes", [None, 1009, 7])
def test_a_wav_file_in_any_pieces(piped, piece_bytes):
    samples, pipe = read(piped(wav(NOISE[:3000]), piece_bytes))
    np.testing.assert_array_equal(samples, NOISE[:3000])
    assert (samples.dtype, pipe.remarks) == (np.float32, [])


@pytest.mark.parametrize("container, subtype", [("FLAC", "PCM_16"), ("WAV", "IMA_ADPCM"), ("AU", "PCM_16")])
def test_other_formats_are_read_to_their_end(piped, container, subtype):
    content = wav(container=container, subtype=subtype)
    samples, pipe = read(piped(content))
    np.testing.assert_array_equal(samples[:24_000], soundfile.read(io.BytesIO(content), dtype="float32")[0][:24_000])
    assert (pipe.remarks, pipe.start_s) == ([], 0.0)


def test_a_cut_file_has_a_remark_after_its_audio(piped):
    samples, pipe = read(piped(wav(subtype="PCM_16")[: 44 + 16_001]))
    assert samples.size == 8000
    assert [(remark.code, remark.start_s, round(remark.lost_s, 3)) for remark in pipe.remarks] == [("cut", 0.5, 1.0)]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "has no audio"),
        (wav(subtype="PCM_16")[:44], "has no audio"),
        (wav(subtype="PCM_16")[:36], "not a readable audio file: no 'data' tag found"),
        (wav()[:30], "not a readable audio file"),
        (b"no audio" * 100, "not a readable audio file"),
        (b"RIFF\0\0\0\0WAVE" + bytes(2_000_000), "not a readable audio file"),
    ],
)
def test_unusable_audio_is_named(piped, content, reason):
    path = piped(content)
    with pytest.raises(AudioError, match=f"^AUDIO_INVALID: {path}: {reason}"):
        read(path)


@pytest.mark.parametrize("encoding, dtype", [("s16le", "<i2"), ("f32le", "<f4")])
@pytest.mark.parametrize("channel, index", [("left", 0), ("right", 1), (2, 1)])
def test_raw_audio(piped, encoding, dtype, channel, index):
    frames = (np.stack([NOISE, -NOISE], axis=1) * (32767 if dtype == "<i2" else 1)).astype(dtype)
    samples, _ = read(piped(frames.tobytes() + b"\0"), raw=RawFormat(encoding, 16_000, 2), channel=channel)
    np.testing.assert_allclose(samples, frames[:, index] / (32768 if dtype == "<i2" else 1), atol=1e-7)


def test_another_rate_is_resampled_without_seams(piped):
    tone = np.sin(np.arange(12_000) * 2 * np.pi * 440 / 8000).astype("<f4")
    with AudioPipe(piped(tone.tobytes()), raw=RawFormat("f32le", 8000), block_ms=100) as pipe:
        blocks = list(pipe)
    assert blocks[0].size >= 1520  # of 1600: at most 5 ms are held back
    samples = np.concatenate(blocks)
    assert samples.size == 24_000
    expected = np.sin(np.arange(24_000) * 2 * np.pi * 440 / 16_000)
    assert np.abs(samples - expected)[400:-400].max() < 1e-3


def test_blocks_have_the_size_that_is_asked_for(piped):
    with AudioPipe(piped(wav(), 5000), block_ms=400) as pipe:
        sizes = [block.size for block in pipe if block.size]
    assert sizes == [6400, 6400, 6400, 4800]


def test_by_default_a_block_is_what_has_arrived(fifo):
    received = []

    def listen():
        with AudioPipe(fifo) as pipe:
            received.extend(pipe)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with fifo.open("wb", buffering=0) as file:
        file.write(wav(subtype="PCM_16")[: 44 + 2 * 2000])
        eventually(lambda: any(block.size == 2000 for block in received))
        count = len(received)
        eventually(lambda: len(received) > count)  # nothing arrives
        assert not received[-1].size
    listener.join(60)
    assert sum(block.size for block in received) == 2000


def test_channels_that_cancel_are_noticed(piped):
    _, pipe = read(piped(wav(np.stack([NOISE, -NOISE], axis=1))))
    assert [remark.code for remark in pipe.remarks] == ["cancelled"]


@pytest.mark.parametrize("container", ["WAV", "FLAC"])
@pytest.mark.parametrize("rate_hz", [16_000, 8000])
def test_channels_side_by_side(piped, container, rate_hz):
    frames = np.stack([NOISE, NOISE / 2], axis=1)
    path = piped(wav(frames, rate_hz, "PCM_16", container))
    with AudioPipe(path, channel="each") as pipe:
        assert pipe.names() == ["left", "right"]
        left, right = map(np.concatenate, zip(*pipe.blocks(), strict=True))
    assert left.size == right.size == 24_000 * 16_000 // rate_hz
    np.testing.assert_allclose(right, left / 2, atol=1e-3)
    if rate_hz == 16_000:
        np.testing.assert_allclose(left, NOISE, atol=1e-4)


def test_a_missing_channel_is_named(piped):
    path = piped(wav(NOISE[:100]))
    with AudioPipe(path, channel="right") as pipe, pytest.raises(AudioError, match="has 1 channel, so there is no"):
        pipe.names()


def test_what_is_a_pipe(fifo, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    found = [is_pipe(path) for path in (fifo, "/dev/null", tmp_path / "file", tmp_path, tmp_path / "gone")]
    assert found == [True, True, False, False, False]


def test_a_terminal_is_no_audio():
    leader, follower = os.openpty()
    try:
        with pytest.raises(AudioError, match="is a terminal: pipe audio into it"):
            AudioPipe(os.ttyname(follower))
    finally:
        os.close(leader)
        os.close(follower)
