import asyncio
import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import aclosing

import numpy as np
import psutil
import pytest
import soundfile
import soxr

from client.tests.helpers.event_loop import until
from client.tests.helpers.sound_files import sound_file
from penstock_gateway.audio import container, decode_worker
from penstock_gateway.audio.container import DecodedRecording, in_memory
from penstock_gateway.audio.decode_worker import MAX_QUIET_CPU_S
from penstock_gateway.errors import GatewayCode, GatewayError

RATE_HZ = 16_000
TONE = (0.3 * np.sin(np.arange(3 * 44_100) * 2 * np.pi * 440 / 44_100)).astype(np.float32)  # 3 s at 44.1 kHz
NO_DATA = b"#!AMR\n" + b"\x7c" * 3_000_000
"""Frames without speech, which take minutes of CPU time and give no samples."""


async def decoded(data, max_seconds=60.0):
    with in_memory(data) as recording:
        return np.concatenate(
            [block async for block in DecodedRecording(recording, "a", RATE_HZ, max_seconds).blocks()]
        )


@pytest.fixture
def decoders(monkeypatch):
    """A process of its own."""
    decoders = container.Decoders()
    monkeypatch.setattr(container, "DECODERS", decoders)
    yield decoders
    decoders.stop()


async def forks(decoders, count):
    """The forks of the process, as soon as it has this number of them."""
    await until(lambda: decoders.pid and len(psutil.Process(decoders.pid).children()) == count)
    return psutil.Process(decoders.pid).children()


async def forked(decoders):
    """A recording that is being decoded, and the fork that decodes it."""
    waiting = asyncio.create_task(decoded(NO_DATA))
    (fork,) = await forks(decoders, 1)
    return waiting, fork


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "PCM_24"), ("FLAC", None), ("AIFF", None), ("AU", "ULAW")])
async def test_a_recording_is_mixed_and_resampled(form, subtype):
    data = sound_file(np.stack([TONE, 0 * TONE], axis=1), 44_100, form, subtype)
    expected = soxr.resample(soundfile.read(io.BytesIO(data), dtype="float32")[0].mean(axis=1), 44_100, RATE_HZ)
    np.testing.assert_allclose(await decoded(data), expected, atol=1e-6)


def assert_tone(samples):
    assert samples.dtype == np.float32
    assert abs(len(samples) / RATE_HZ - 3.0) < 0.15
    middle = samples[RATE_HZ : 2 * RATE_HZ]
    assert np.abs(np.fft.rfft(middle)).argmax() == 440
    assert abs(np.abs(middle).max() - 0.3) < 0.05


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"no audio at all", "it is a text, which begins with 'no audio at all'; accepted: WAV, MP3"),
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
    assert error.value.code is GatewayCode.AUDIO_INVALID


async def test_a_recording_that_is_too_long_is_rejected_while_it_is_decoded():
    data = sound_file(np.zeros(60 * RATE_HZ), RATE_HZ, "FLAC")  # silence is small
    with pytest.raises(GatewayError, match="longer than 30 s") as error:
        await decoded(data, max_seconds=30)
    assert error.value.code is GatewayCode.TOO_LARGE
    assert len(await decoded(data, max_seconds=60)) == 60 * RATE_HZ


async def test_a_process_that_dies_is_an_error_of_its_recording(decoders, monkeypatch):
    monkeypatch.setattr(container.sys, "executable", "/bin/false")
    with pytest.raises(GatewayError, match=r"was lost|ends at once"):
        await decoded(sound_file(TONE, 44_100, "FLAC"))


@pytest.mark.parametrize("written", [b"", b"\1\0", b"\1" + bytes(16), bytes(16), bytes(16) + b"{"])
async def test_a_process_that_ends_at_any_byte_is_an_error_of_its_recording(monkeypatch, written):
    def answer(order, recording, pipe, control):
        os.write(pipe, written)
        os.write(control, b"0")

    monkeypatch.setattr(container.DECODERS, "send", answer)
    with pytest.raises(GatewayError, match="too much memory or time") as error:
        await decoded(sound_file(TONE, 44_100, "FLAC"))
    assert error.value.code is GatewayCode.AUDIO_INVALID


async def test_a_process_that_has_died_is_started_again(decoders):
    decoders.start().shutdown(socket.SHUT_RDWR)  # its last order
    assert_tone(await decoded(sound_file(soxr.resample(TONE, 44_100, 48_000), 48_000, "FLAC")))


@pytest.mark.parametrize("call", ["os.pipe", "os.memfd_create", "socket.socketpair", "subprocess.Popen"])
async def test_a_call_that_the_system_rejects_is_an_error_of_its_recording(decoders, monkeypatch, call):
    """No descriptors, memory or processes are left; then there are some again."""

    def fail(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    data = sound_file(TONE, 44_100, "FLAC")
    with monkeypatch.context() as failing:
        failing.setattr(f"penstock_gateway.audio.container.{call}", fail)
        with pytest.raises(GatewayError, match="Too many open files") as error:
            await decoded(data)
    assert (error.value.code, error.value.retry_after_s) == (GatewayCode.OVERLOADED, 2.0)
    assert_tone(await decoded(data))


async def test_a_process_that_takes_no_orders_does_not_stop_the_event_loop(decoders):
    decoders._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    decoders._orders.setblocking(False)
    with theirs:
        with pytest.raises(BlockingIOError):
            while True:
                decoders.send(b"order")
        with pytest.raises(GatewayError) as error:
            await decoded(sound_file(TONE, 44_100, "FLAC"))
    assert error.value.code is GatewayCode.OVERLOADED


@pytest.mark.parametrize("spare", [3, 4])
async def test_a_fork_without_descriptors_is_not_an_error_of_its_recording(decoders, spare):
    data = sound_file(TONE, 44_100, "FLAC")
    assert_tone(await decoded(data))
    await forks(decoders, 0)
    process = psutil.Process(decoders.pid)
    limit = process.num_fds() + spare  # the order has three
    before = process.rlimit(psutil.RLIMIT_NOFILE, (limit, process.rlimit(psutil.RLIMIT_NOFILE)[1]))
    with pytest.raises(GatewayError, match=r"^OVERLOADED: no recording can be decoded: Too many open files$"):
        await decoded(data)
    process.rlimit(psutil.RLIMIT_NOFILE, before or process.rlimit(psutil.RLIMIT_NOFILE)[1:] * 2)
    assert_tone(await decoded(data))


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
@pytest.mark.parametrize("place", [0, 30_000])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_file_that_the_system_does_not_read_is_not_an_error_of_its_recording(monkeypatch, form, place, number):
    monkeypatch.setattr(decode_worker, "_limit_cpu", lambda: None)  # this process is no fork

    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() >= place:
                raise OSError(number, os.strerror(number), "/var/tmp/secret")
            return super().read(size)

    noise = np.random.default_rng(0).normal(0, 0.1, 5 * RATE_HZ)
    with pytest.raises(OSError) as error:
        order = {"rate_hz": RATE_HZ, "max_seconds": 60.0, "channel": "mix"}
        decode_worker.write_samples(order, Broken(sound_file(noise, RATE_HZ, form)), io.BytesIO())
    assert error.value.errno == number


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
                socket.send_fds(ours, [b"{}"], [recording.fileno(), pipe.fileno(), recording.fileno()])
            answers.append(source)
        ours.shutdown(socket.SHUT_WR)
        decode_worker.run_orders(theirs)
    for source in answers:
        with open(source, "rb") as pipe:
            answer = pipe.read()
        assert answer[:16] == bytes(16)
        assert json.loads(answer[16:])["failure"]["code"] == "OVERLOADED"


async def test_a_reader_that_stops_ends_the_process(decoders):
    data = sound_file(np.zeros(600 * RATE_HZ), RATE_HZ, "FLAC")
    async with aclosing(DecodedRecording(in_memory(data), "a", RATE_HZ, 3600).blocks()) as blocks:
        async for block in blocks:
            assert block.size
            break
    await forks(decoders, 0)


@pytest.mark.parametrize("moment", ["at once", "when ordered", "in the middle"])
async def test_a_client_that_leaves_ends_a_process_that_writes_nothing(decoders, moment):
    for _ in range(2 * container.MAX_PROCESSES):
        waiting = asyncio.create_task(decoded(NO_DATA))
        if moment != "at once":
            await asyncio.sleep(0)
        if moment == "in the middle":
            await forks(decoders, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    processes = container._processes.get(asyncio.get_running_loop())
    await until(lambda: not processes or not processes.used["a"])
    if moment != "at once":
        assert not await forks(decoders, 0)


async def test_processes_of_clients_that_left_keep_their_places_until_they_have_ended(decoders):
    waiting, fork = await forked(decoders)
    os.kill(decoders.pid, signal.SIGSTOP)  # it does not report the end
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    processes = container._processes[asyncio.get_running_loop()]
    assert processes.used["a"] == 1
    os.kill(decoders.pid, signal.SIGCONT)
    await until(lambda: not processes.used["a"])
    assert not fork.is_running()


async def test_a_process_that_the_system_kills_is_not_an_error_of_its_recording(decoders):
    waiting, fork = await forked(decoders)
    fork.kill()
    with pytest.raises(GatewayError, match="was lost") as error:
        await waiting
    assert error.value.code is GatewayCode.OVERLOADED


async def test_a_process_that_is_stopped_is_replaced(decoders, monkeypatch, caplog):
    data = sound_file(TONE, 44_100, "FLAC")
    assert_tone(await decoded(data))
    before = decoders.pid
    os.kill(before, signal.SIGSTOP)
    decoders.max_answer_s = 0.1
    for error in await asyncio.gather(decoded(data), decoded(data), return_exceptions=True):
        assert error.code is GatewayCode.OVERLOADED
    assert "another one replaces it" in caplog.text
    assert_tone(await decoded(data))
    assert decoders.pid != before


async def test_a_process_that_is_stopped_after_its_fork_is_replaced(decoders, monkeypatch):
    waiting, fork = await forked(decoders)
    monkeypatch.setattr(container.limits, "UNRESPONSIVE_S", 0.1)  # the fork itself may take longer
    os.kill(decoders.pid, signal.SIGSTOP)
    fork.kill()
    with pytest.raises(GatewayError, match="was lost"):
        await asyncio.wait_for(waiting, 60)
    assert not container._processes[asyncio.get_running_loop()].used["a"]


async def test_forks_end_with_the_process(decoders):
    waiting, _ = await forked(decoders)
    decoders.stop()
    with pytest.raises(GatewayError, match="was lost"):  # both have closed their socket
        await waiting


def test_process_1_of_a_container_reaps_what_it_inherits():
    program = """if True:
        import asyncio, os, psutil
        from gateway.tests.audio.test_container import NO_DATA, RATE_HZ, TONE, container, decoded, sound_file
        async def main():
            waiting = asyncio.create_task(decoded(NO_DATA))
            await asyncio.sleep(0)
            while not (forks := psutil.Process(container.DECODERS.pid).children()):
                await asyncio.sleep(0.01)
            os.kill(container.DECODERS.pid, 9)
            while forks[0].ppid() != 1:
                await asyncio.sleep(0.01)
            forks[0].kill()
            await asyncio.gather(waiting, return_exceptions=True)
            while psutil.pid_exists(forks[0].pid):
                await asyncio.gather(decoded(sound_file(TONE, RATE_HZ, "FLAC")), return_exceptions=True)
        asyncio.run(main())"""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system gives no namespace of processes")
    done = subprocess.run([*apart, sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert not done.returncode, done.stderr


def test_the_process_of_a_recording_is_limited():
    """A fork may use MAX_QUIET_CPU_S without a block and writes no file; the process that forks has no limit."""
    program = """if True:
        import os, resource, socket
        from penstock_gateway.audio import decode_worker
        def write_samples(order, data, out):
            out.write(repr([resource.getrlimit(r)[0] for r in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)]).encode())
        decode_worker.write_samples = write_samples
        decode_worker.time.process_time = lambda: 3.4
        pair = socket.socketpair()
        decode_worker._run({}, os.open("/dev/null", os.O_RDONLY), 1, pair[0])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [3 + MAX_QUIET_CPU_S, 0]
