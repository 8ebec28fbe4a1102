"""Recordings in a container or compressed -> samples at the model's rate, decoded in a limited process.

The first bytes decide the format, never a name. Audio without compression needs no decoder: see `pcm`.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import MIX, Channel, Samples
from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.budget import Budget

MAX_PROCESSES = 8
"""More recordings wait, as do those of a key that has half of them, until a process has ended; all together take less
than `decode_worker.MAX_MEMORY_BYTES` for each."""
_log = logging.getLogger(__name__)
_processes: WeakKeyDictionary[asyncio.AbstractEventLoop, Budget] = WeakKeyDictionary()
"""The processes of each event loop."""


class DecodedRecording:
    """The audio of a recording, which a process decodes no further than it is read. Use `blocks` once."""

    def __init__(self, recording: BinaryIO, key: str, rate_hz: int, max_seconds: float, channel: Channel = MIX):
        """`recording`: a file, open until the first block is there; `key`: the name of that which the process counts
        for."""
        self.start_s = 0.0
        """The time of the first sample in the recording; known with the first block."""
        self.remarks: list[Remark] = []
        """Gaps in the samples; known after the last block."""
        self._recording, self._key = recording, key
        self.rate_hz, self._max_seconds, self._channel = rate_hz, max_seconds, channel

    async def blocks(self) -> AsyncGenerator[Samples, None]:
        """Blocks [n] of a few seconds; of each channel [channels, n].

        GatewayError: AUDIO_INVALID for what cannot be decoded; TOO_LARGE for a longer recording; OVERLOADED where no
        process can start or read its file; STREAMS_EXHAUSTED where it waits too long for one.
        """
        new = Budget("decoder", MAX_PROCESSES, limits.KEEP_ALIVE_S - 1)
        processes = _processes.setdefault(asyncio.get_running_loop(), new)
        await processes.acquire(self._key, 1)
        fork = _Fork(partial(processes.release, self._key, 1))
        try:
            order = {"rate_hz": self.rate_hz, "max_seconds": self._max_seconds, "channel": self._channel}
            reader = await fork.start(self._recording, json.dumps(order).encode())
            while True:
                size, tracks, start_s = struct.unpack("<IId", await reader.readexactly(16))
                if not size:
                    break
                self.start_s = start_s
                samples = np.frombuffer(await reader.readexactly(size * tracks * 4), np.float32)
                yield samples if self._channel == MIX else samples.reshape(tracks, size)
            end = json.loads(await reader.read())
            failure, self.remarks = end["failure"], [Remark(*each) for each in end["remarks"]]
        except OSError as error:
            raise _not_decoded(error) from error
        except (asyncio.IncompleteReadError, ValueError, KeyError, TypeError):
            failure = {"code": "AUDIO_INVALID", "message": "decoding the audio needs too much memory or time"}
            if (status := await fork.ended()) is not None and status > 0:
                raise _not_decoded(OSError(status, os.strerror(status))) from None
            if status in (None, -signal.SIGKILL):  # the system's memory is full
                failure = {"code": "OVERLOADED", "message": "the process that decodes the recording was lost"}
            _log.warning("the process that decodes a recording ended early, with status %s", status)
        finally:
            fork.end()
        if failure:
            code, message = GatewayCode[failure["code"]], failure["message"]
            raise _overloaded(message) if code is GatewayCode.OVERLOADED else GatewayError(code, message)


class _Fork:
    """A process that decodes one recording. `end` kills it, whatever its client does."""

    def __init__(self, release: Callable[[], None]):
        """`release`: called once it has ended."""
        self._loop = asyncio.get_running_loop()
        self._closing = ExitStack()
        self._closing.callback(release)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._status: asyncio.Future[int | None] = self._loop.create_future()
        self._code: int | None = None
        self._control: socket.socket | None = None
        self._pipe: asyncio.BaseTransport | None = None
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    async def start(self, recording: BinaryIO, order: bytes) -> asyncio.StreamReader:
        """Orders it, and waits until it runs; returns the end of its pipe. OSError."""
        with ExitStack() as opened, ExitStack() as on_error:
            ends = os.pipe()
            source, sink = on_error.enter_context(open(ends[0], "rb")), opened.enter_context(open(ends[1], "wb"))
            control, theirs = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            DECODERS.send(order, recording.fileno(), sink.fileno(), theirs.fileno())
            self._control = control.dup()
            self._control.setblocking(False)
            self._loop.add_reader(self._control, self._receive)
            self._closing.callback(self._control.close)
            self._closing.callback(self._loop.remove_reader, self._control)
            self._expect(DECODERS.max_answer_s)
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            self._pipe, _ = await self._loop.connect_read_pipe(lambda: protocol, source)
            on_error.pop_all()  # the transport closes it
        await asyncio.shield(self._started)
        return reader

    async def ended(self) -> int | None:
        """Exit status of the process when it has ended, or minus the signal; None if it is not known."""
        if not self._status.done():
            self._expect(limits.UNRESPONSIVE_S)
        return await asyncio.shield(self._status)

    def end(self) -> None:
        """Kills it, now or as soon as it starts."""
        self._is_over = True
        if self._pipe is not None:
            self._pipe.close()
        if self._control is None:  # it was not ordered
            self._finish()
        elif self._descriptor is not None and not self._status.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            self._expect(limits.UNRESPONSIVE_S)

    def _expect(self, seconds: float | None) -> None:
        """Replaces the process that forks, if it does not answer in this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._expire, DECODERS.pid)

    def _expire(self, pid: int | None) -> None:
        DECODERS.replace(pid)
        if not self._started.done():
            self._started.set_exception(TimeoutError("the process that decodes took no order"))
            self._started.exception()  # it may be that nothing waits for it
            self._finish()

    def _receive(self) -> None:
        """Takes the fork's descriptor, then its status, then their end: both processes have closed the socket."""
        assert self._control is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 16, 1)
        except OSError:
            message, descriptors = b"", []
        if descriptors:
            (self._descriptor,) = descriptors
            self._closing.callback(os.close, self._descriptor)
            self._expect(None)
            DECODERS.max_answer_s = limits.UNRESPONSIVE_S
            self._started.set_result(None)
            if self._is_over:
                self.end()
        elif message:
            self._code = int(message)
        else:
            self._finish()

    def _finish(self) -> None:
        """Gives back what an ended process held."""
        if os.getpid() == 1:  # of a container: it inherits the forks of a process that was replaced
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        self._expect(None)
        self._closing.close()
        if not self._started.done():
            self._started.set_result(None)  # its pipe says why
        if not self._status.done():
            self._status.set_result(self._code)


def in_memory(data: bytes | bytearray) -> BinaryIO:
    """A file with these bytes. GatewayError OVERLOADED."""
    try:
        file = open(os.memfd_create("recording"), "w+b")  # noqa: SIM115 - the caller closes it
        file.write(data)
        file.flush()
    except OSError as error:
        raise _not_decoded(error) from error
    return file


def _not_decoded(error: OSError) -> GatewayError:
    return _overloaded(f"no recording can be decoded: {error.strerror or error}")


def _overloaded(message: str) -> GatewayError:
    _log.error("%s", message)
    return GatewayError(GatewayCode.OVERLOADED, message)


class Decoders:
    """The process of `decode_worker`, which ends with this one. It starts with the first recording, or with `start`."""

    def __init__(self) -> None:
        self._orders: socket.socket | None = None
        self.pid: int | None = None
        self.max_answer_s = limits.MAX_WAIT_S

    def start(self) -> socket.socket:
        """Starts the process; returns its socket. OSError where it cannot start."""
        if self._orders is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # As with -m, but without the current directory on the path.
            run = "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_module"
            command = [sys.executable, "-c", f"{run}('penstock_gateway.audio.decode_worker', run_name='__main__')"]
            with ExitStack() as on_error, theirs:
                on_error.enter_context(ours)
                environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
                on_error.pop_all()
            self.pid, self.max_answer_s = process.pid, limits.MAX_WAIT_S
            ours.setblocking(False)  # the event loop does not wait for a process that takes no orders
            self._orders = ours
        return self._orders

    def send(self, order: bytes, *descriptors: int) -> None:
        """Sends an order; starts the process again if it has ended. OSError if it does not start or takes no orders."""
        for _ in range(2):
            try:
                socket.send_fds(self.start(), [order], descriptors)
            except ConnectionError:  # it has ended
                self.stop()
            else:
                return
        raise OSError("the process ends at once")

    def replace(self, pid: int | None) -> None:
        """Ends this process, which does not answer, if it is still the one; the next order starts another."""
        if self._orders is not None and self.pid is not None and pid == self.pid:
            _log.error("the process that decodes recordings does not answer: another one replaces it")
            self.stop()
            os.kill(self.pid, signal.SIGKILL)  # not its forks: they go on

    def stop(self) -> None:
        """Ends the process and its forks."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None


DECODERS = Decoders()
