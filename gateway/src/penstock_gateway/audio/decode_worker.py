"""The process that decodes recordings, each in a fork of its own with limits of memory and CPU time.

It has no threads and no gRPC, so it can fork, and a fork has all libraries. An order comes on standard input, a socket,
with two descriptors: the recording, and the pipe for its samples. A block has their number (uint32), the time of the
recording's first sample (float64) and the samples (float32), little-endian. After the last one come the number 0 and a
JSON object: the remarks, and why there are no more samples. The limits are there because decoders of compressed formats
read untrusted data.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock_client.audio.pcm import Remark
from penstock_client.audio.tracks import TrackReader
from penstock_gateway.security.limits import MAX_CHANNELS

MAX_MEMORY_BYTES = 96 << 20
"""Address space of one recording, beside that of the libraries."""
MAX_CPU_S = 120
MAX_ORDER_BYTES = 4096


class _TooLongError(Exception):
    """The recording is longer than accepted."""


def main() -> None:
    """Forks for each order, until the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks
    import av.logging  # noqa: F401, so that forks have it

    with socket.socket(fileno=os.dup(0)) as orders:
        run_orders(orders)


def address_space_bytes() -> int:
    """The address space that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def run_orders(orders: socket.socket) -> None:
    """Starts a fork for each order, until the other end is closed. If none can start, the order's pipe says so."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 2)
        if not message:
            return
        recording, pipe = descriptors
        try:
            is_fork = os.fork() == 0
        except OSError as error:
            reason = f"no recording can be decoded: {error.strerror}"
            with contextlib.suppress(BrokenPipeError), open(pipe, "wb", closefd=False) as out:
                _end(out, {"code": "OVERLOADED", "message": reason})
        else:
            if is_fork:
                orders.close()
                _run(json.loads(message), recording, pipe)
        for descriptor in descriptors:
            os.close(descriptor)


def _run(order: Mapping[str, Any], recording: int, pipe: int) -> None:
    """Decodes one recording and ends this process."""
    try:
        memory_bytes = address_space_bytes() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders remark on every damaged frame
        # Not the descriptor itself, which has one position in all processes.
        with open(f"/proc/self/fd/{recording}", "rb") as file, open(pipe, "wb") as out:
            write_samples(order, file, out)
    except (BrokenPipeError, MemoryError):
        pass  # the reader has stopped; or it sees that the end is missing
    finally:
        os._exit(0)


def write_samples(order: Mapping[str, Any], recording: BinaryIO, out: BinaryIO) -> None:
    """Decodes a recording as the order says."""
    failure: dict[str, str] = {}
    remarks: list[Remark] = []
    try:
        with TrackReader(recording, order["rate_hz"], max_channels=MAX_CHANNELS) as reader:
            for samples in _blocks(reader, order["rate_hz"], order["max_seconds"]):
                out.write(struct.pack("<Id", samples.size, reader.start_s) + samples.tobytes())
            remarks = reader.remarks
    except (ValueError, ImportError) as error:
        reason = {"has no audio": "is empty"}.get(str(error), str(error))
        verb = "is " if reason.startswith("not ") else ""
        failure = {"code": "AUDIO_INVALID", "message": f"the audio {verb}{reason}"}
    except _TooLongError:
        failure = {"code": "TOO_LARGE", "message": f"the audio is longer than {order['max_seconds']:g} s"}
    _end(out, failure, remarks)


def _end(out: BinaryIO, failure: Mapping[str, str], remarks: Sequence[Remark] = ()) -> None:
    """Writes what follows the last block."""
    out.write(struct.pack("<Id", 0, 0.0) + json.dumps({"failure": failure, "remarks": remarks}).encode())
    out.flush()


def _blocks(reader: TrackReader, rate_hz: int, max_seconds: float) -> Iterator[npt.NDArray[np.float32]]:
    """The mix of the channels. ValueError without samples, also of a recording that has less than one at this rate."""
    count = 0
    for (samples,) in reader.blocks():
        count += samples.size
        if count > max_seconds * rate_hz:
            raise _TooLongError
        if samples.size:
            yield samples
    if not count:
        raise ValueError("has no samples")


if __name__ == "__main__":
    main()
