import errno
import io
import json
import os
import socket
import subprocess
import sys
from contextlib import aclosing

import numpy as np
import pytest
import soundfile
import soxr

from client.tests.helpers.sound_files import media_file, sound_file
from penstock_gateway.audio import container, decode_worker
from penstock_gateway.audio.container import DecodedRecording, in_memory
from penstock_gateway.audio.decode_worker import MAX_CPU_S
from penstock_gateway.errors import ErrorCode, GatewayError

RATE_HZ = 16_000
TONE = (0.3 * np.sin(np.arange(3 * 44_100) * 2 * np.pi * 440 / 44_100)).astype(np.float32)  # 3 s at 44.1 kHz


async def decoded(data, max_seconds=60.0):
    with in_memory(data) as recording:
        return np.concatenate(
            [block async for block in DecodedRecording(recording, "a", RATE_HZ, max_seconds).blocks()]
        )


@pytest.mark.anyio
@pytest.mark.parametrize(("form", "subtype"), [("WAV", "PCM_24"), ("FLAC", None), ("AIFF", None), ("AU", "ULAW")])
async def test_a_recording_is_mixed_and_resampled(form, subtype):
    data = sound_file(np.stack([TONE, 0 * TONE], axis=1), 44_100, form, subtype)
    expected = soxr.resample(soundfile.read(io.BytesIO(data), dtype="float32")[0].mean(axis=1), 44_100, RATE_HZ)
    np.testing.assert_allclose(await decoded(data), expected, atol=1e-6)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("form", "codec"), [("ogg", "libopus"), ("mp3", "libmp3lame"), ("webm", "libopus"), ("ipod", "aac")]
)
async def test_compressed_recordings(form, codec):
    assert_tone(await decoded(media_file(form, codec, soxr.resample(TONE, 44_100, 48_000), 48_000)))


def assert_tone(samples):
    assert samples.dtype == np.float32
    assert abs(len(samples) / RATE_HZ - 3.0) < 0.15
    middle = samples[RATE_HZ : 2 * RATE_HZ]
    assert np.abs(np.fft.rfft(middle)).argmax() == 440
    assert abs(np.abs(middle).max() - 0.3) < 0.05


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"no audio at all", "begins with b'no audio'"),
        (b"fLaC" + bytes(100), "not a readable audio file"),
        (b"\x1aE\xdf\xa3" + bytes(100), "not a readable audio file"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(100), "not a readable audio file"),
        (sound_file(np.zeros((100, 9)), RATE_HZ, "WAV"), "has 9 channels; accepted: 1 to 8"),
        (sound_file(np.zeros(0), RATE_HZ, "WAV"), "is empty"),
        (sound_file(np.full(100, np.nan), RATE_HZ, "WAV", "FLOAT"), "not finite"),
        (sound_file(TONE[:1000], 1, "WAV"), "sample rate of 1 Hz"),
        (sound_file(TONE[:1], 192_000, "WAV"), "no samples"),
    ],
)
async def test_a_recording_that_cannot_be_decoded_is_named(data, message):
    with pytest.raises(GatewayError, match=message) as error:
        await decoded(data)
    assert error.value.code is ErrorCode.AUDIO_INVALID


@pytest.mark.anyio
async def test_a_cut_recording_that_begins_late():
    data = media_file("matroska", "pcm_s16le", TONE, 44_100, start_s=2.0)
    with in_memory(data[: len(data) // 2]) as file:
        recording = DecodedRecording(file, "a", RATE_HZ, 60.0)
        samples = np.concatenate([block async for block in recording.blocks()])
    assert recording.start_s == 2.0
    assert [remark.code for remark in recording.remarks] == ["cut"]
    assert abs(recording.remarks[0].start_s - 2.0 - len(samples) / RATE_HZ) < 0.05


@pytest.mark.anyio
async def test_random_bytes_behind_a_header_are_rejected():
    rng = np.random.default_rng(0)
    for magic in (b"fLaC", b"OggS", b"ID3", b"\xff\xfb"):
        with pytest.raises(GatewayError) as error:
            await decoded(magic + rng.bytes(5000))
        assert error.value.code is ErrorCode.AUDIO_INVALID


@pytest.mark.anyio
async def test_a_recording_that_is_too_long_is_rejected_while_it_is_decoded():
    data = sound_file(np.zeros(60 * RATE_HZ), RATE_HZ, "FLAC")  # silence is small
    with pytest.raises(GatewayError, match="longer than 30 s") as error:
        await decoded(data, max_seconds=30)
    assert error.value.code is ErrorCode.TOO_LARGE
    assert len(await decoded(data, max_seconds=60)) == 60 * RATE_HZ


@pytest.mark.anyio
async def test_a_process_that_dies_is_an_error_of_its_recording(monkeypatch):
    decoders = container.Decoders()
    monkeypatch.setattr(container, "DECODERS", decoders)
    monkeypatch.setattr(container.sys, "executable", "/bin/false")
    with pytest.raises(GatewayError, match=r"too much memory or time|ends at once"):
        await decoded(sound_file(TONE, 44_100, "FLAC"))
    monkeypatch.undo()
    decoders.stop()


@pytest.mark.anyio
@pytest.mark.parametrize("written", [b"", b"\1\0", b"\1" + bytes(12), bytes(12), bytes(12) + b"{"])
async def test_a_process_that_ends_at_any_byte_is_an_error_of_its_recording(monkeypatch, written):
    monkeypatch.setattr(container.DECODERS, "send", lambda order, recording, pipe: os.write(pipe, written))
    with pytest.raises(GatewayError, match="too much memory or time") as error:
        await decoded(sound_file(TONE, 44_100, "FLAC"))
    assert error.value.code is ErrorCode.AUDIO_INVALID


@pytest.mark.anyio
async def test_a_process_that_has_died_is_started_again(monkeypatch):
    decoders = container.Decoders()
    monkeypatch.setattr(container, "DECODERS", decoders)
    decoders.start().shutdown(socket.SHUT_RDWR)  # its last order
    assert_tone(await decoded(sound_file(soxr.resample(TONE, 44_100, 48_000), 48_000, "FLAC")))
    decoders.stop()


@pytest.mark.anyio
@pytest.mark.parametrize("call", ["os.pipe", "os.memfd_create", "socket.socketpair", "subprocess.Popen"])
async def test_a_call_that_the_system_rejects_is_an_error_of_its_recording(monkeypatch, call):
    """No descriptors, memory or processes are left; then there are some again."""
    decoders = container.Decoders()
    monkeypatch.setattr(container, "DECODERS", decoders)

    def fail(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    data = sound_file(TONE, 44_100, "FLAC")
    with monkeypatch.context() as failing:
        failing.setattr(f"penstock_gateway.audio.container.{call}", fail)
        with pytest.raises(GatewayError, match="Too many open files") as error:
            await decoded(data)
    assert (error.value.code, error.value.retry_after_s) == (ErrorCode.OVERLOADED, 2.0)
    assert_tone(await decoded(data))
    decoders.stop()


@pytest.mark.anyio
async def test_a_process_that_takes_no_orders_does_not_stop_the_event_loop(monkeypatch):
    decoders = container.Decoders()
    decoders._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    decoders._orders.setblocking(False)
    monkeypatch.setattr(container, "DECODERS", decoders)
    with theirs:
        with pytest.raises(BlockingIOError):
            while True:
                decoders.send(b"order")
        with pytest.raises(GatewayError) as error:
            await decoded(sound_file(TONE, 44_100, "FLAC"))
    assert error.value.code is ErrorCode.OVERLOADED
    decoders.stop()


def test_the_process_goes_on_where_it_cannot_fork(monkeypatch):
    def fail():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(decode_worker.os, "fork", fail)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    answers = []
    with ours, theirs:
        for _ in range(2):
            source, sink = os.pipe()
            with open("/dev/null") as recording, open(sink) as pipe:
                socket.send_fds(ours, [b"{}"], [recording.fileno(), pipe.fileno()])
            answers.append(source)
        ours.shutdown(socket.SHUT_WR)
        decode_worker.run_orders(theirs)
    for source in answers:
        with open(source, "rb") as pipe:
            answer = pipe.read()
        assert answer[:12] == bytes(12)
        assert json.loads(answer[12:])["failure"]["code"] == "OVERLOADED"


@pytest.mark.anyio
async def test_a_reader_that_stops_ends_the_process():
    data = sound_file(np.zeros(600 * RATE_HZ), RATE_HZ, "FLAC")
    async with aclosing(DecodedRecording(in_memory(data), "a", RATE_HZ, 3600).blocks()) as blocks:
        async for block in blocks:
            assert block.size
            break  # leaving the block waits for the process


def test_the_process_of_a_recording_is_limited():
    """A fork may use MAX_CPU_S and writes no file; the process that forks has no limit."""
    program = """if True:
        import os, resource, sys
        from penstock_gateway.audio import decode_worker
        def write_samples(order, data, out):
            out.write(repr([resource.getrlimit(r)[0] for r in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]).encode())
        decode_worker.write_samples = write_samples
        decode_worker._run({}, os.open("/dev/null", os.O_RDONLY), 1)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [MAX_CPU_S, 0]
