"""Recordings in a container or compressed -> mono samples at the model's rate, decoded in a limited process.

The first bytes decide the format, never a name. Audio without compression needs no decoder: see `pcm`.
"""

import asyncio
import json
import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from penstock_client.audio.pcm import Remark
from penstock_client.audio.tracks import Samples
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.budget import Budget
from penstock_gateway.security.limits import MAX_DECODER_WAIT_S, RETRY_AFTER_S

MAX_PROCESSES = 8
"""More recordings wait, as do those of a key that has half of them. A process lives until its last block is read; all
together take less than `decode_worker.MAX_MEMORY_BYTES` for each."""
_log = logging.getLogger(__name__)
_processes: WeakKeyDictionary[asyncio.AbstractEventLoop, Budget] = WeakKeyDictionary()
"""The processes of each event loop."""


class DecodedRecording:
    """The audio of a recording, which a process decodes no further than it is read. Use `blocks` once."""

    def __init__(self, recording: BinaryIO, key: str, rate_hz: int, max_seconds: float):
        """`recording`: a file, open until the first block is there; `key`: the name of that which the process counts
        for."""
        self.start_s = 0.0
        """The time of the first sample in the recording; known with the first block."""
        self.remarks: list[Remark] = []
        """Where samples are missing; known after the last block."""
        self._recording, self._key = recording, key
        self._order = {"rate_hz": rate_hz, "max_seconds": max_seconds}

    async def blocks(self) -> AsyncGenerator[Samples, None]:
        """Blocks [n] of a few seconds.

        GatewayError: AUDIO_INVALID for what cannot be decoded; TOO_LARGE for a longer recording; OVERLOADED where no
        process can start; STREAMS_EXHAUSTED where it waits too long for one.
        """
        new = Budget("decoder", MAX_PROCESSES, MAX_DECODER_WAIT_S)
        processes = _processes.setdefault(asyncio.get_running_loop(), new)
        async with processes.taken(self._key, 1):
            reader, transport = await _start(self._recording, self._order)
            try:
                while True:
                    size, start_s = struct.unpack("<Id", await reader.readexactly(12))
                    if not size:
                        break
                    self.start_s = start_s
                    yield np.frombuffer(await reader.readexactly(size * 4), np.float32)
                end = json.loads(await reader.read())
                failure, self.remarks = end["failure"], [Remark(*each) for each in end["remarks"]]
            except (asyncio.IncompleteReadError, ValueError, KeyError, TypeError):
                failure = {"code": "AUDIO_INVALID", "message": "decoding the audio needs too much memory or time"}
                _log.warning("the process that decodes a recording ended early")
            finally:
                transport.close()  # which also ends a process that writes
        if failure:
            code, message = ErrorCode[failure["code"]], failure["message"]
            raise _overloaded(message) if code is ErrorCode.OVERLOADED else GatewayError(code, message)


def in_memory(data: bytes | bytearray) -> BinaryIO:
    """A file with these bytes. GatewayError OVERLOADED."""
    try:
        file = open(os.memfd_create("recording"), "w+b")  # noqa: SIM115 - the caller closes it
        file.write(data)
        file.flush()
    except OSError as error:
        raise _not_decoded(error) from error
    return file


async def _start(recording: BinaryIO, order: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Orders a recording; returns the end of its pipe. GatewayError OVERLOADED."""
    try:
        with ExitStack() as opened, ExitStack() as on_error:
            ends = os.pipe()
            source, sink = on_error.enter_context(open(ends[0], "rb")), opened.enter_context(open(ends[1], "wb"))
            DECODERS.send(json.dumps(order).encode(), recording.fileno(), sink.fileno())
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, source)
            on_error.pop_all()  # the transport closes it
            return reader, transport
    except OSError as error:
        raise _not_decoded(error) from error


def _not_decoded(error: OSError) -> GatewayError:
    return _overloaded(f"no recording can be decoded: {error.strerror or error}")


def _overloaded(message: str) -> GatewayError:
    _log.error("%s", message)
    return GatewayError(ErrorCode.OVERLOADED, message, retry_after_s=RETRY_AFTER_S)


class Decoders:
    """The process of `decode_worker`, which ends with this one. It starts with the first recording, or with `start`."""

    def __init__(self) -> None:
        self._orders: socket.socket | None = None
        self.pid: int | None = None
        """The id of the process, if it has started."""

    def start(self) -> socket.socket:
        """Its socket. OSError where it cannot start."""
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
            self.pid = process.pid
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

    def stop(self) -> None:
        """Ends the process once its recordings are decoded."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None


DECODERS = Decoders()
