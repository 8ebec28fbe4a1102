"""The process that decodes recordings, each in a fork of its own with limits of memory and CPU time.

It has no threads and no gRPC, so it can fork, and a fork has all libraries. An order comes on standard input, a socket,
with two descriptors: the recording, and the pipe for its samples. A block of samples is their number (uint32), then the
samples (float32), little-endian. Behind the last one come the number 0 and a JSON object: empty, or why there are no
more samples. The limits are there because decoders of compressed formats read untrusted data.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock_client.audio.sound_file import open_sound
from penstock_gateway.audio.resampler import Resampler, Samples

MAX_MEMORY_BYTES = 3 << 30
"""Address space, most of which is libraries."""
MAX_CPU_S = 120
MAX_ORDER_BYTES = 4096


class _TooLongError(Exception):
    """The recording is longer than accepted."""


def main() -> None:
    """Forks for each order, until the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks
    with contextlib.suppress(ImportError):
        import av  # noqa: F401, so that forks have it
    with socket.socket(fileno=os.dup(0)) as orders:
        take_orders(orders)


def take_orders(orders: socket.socket) -> None:
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
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders remark on every damaged frame
        with open(recording, "rb") as file, open(pipe, "wb") as out:
            write_samples(order, file.read(), out)
    except (BrokenPipeError, MemoryError):
        pass  # the reader has stopped; or it sees that the end is missing
    finally:
        os._exit(0)


def write_samples(order: Mapping[str, Any], data: bytes, out: BinaryIO) -> None:
    """Decodes a recording as the order says."""
    failure: dict[str, str] = {}
    try:
        for samples in _mono(_read(data), order["rate_hz"], order["max_seconds"]):
            out.write(struct.pack("<I", samples.size) + samples.tobytes())
    except (ValueError, ImportError) as error:
        verb = "is " if str(error).startswith("not ") else ""
        failure = {"code": "AUDIO_INVALID", "message": f"the audio {verb}{error}"}
    except _TooLongError:
        failure = {"code": "TOO_LARGE", "message": f"the audio is longer than {order['max_seconds']:g} s"}
    _end(out, failure)


def _end(out: BinaryIO, failure: Mapping[str, str]) -> None:
    """Writes what follows the last block."""
    out.write(struct.pack("<I", 0) + json.dumps(failure).encode())
    out.flush()


def _mono(blocks: Iterable[tuple[int, npt.NDArray[np.float32]]], to_hz: int, max_seconds: float) -> Iterator[Samples]:
    """Averages the channels of blocks (rate, samples [n, channels]) and resamples. ValueError without samples."""
    total = 0
    for samples in _resampled(blocks, to_hz, max_seconds):
        total += samples.size
        if samples.size:
            yield samples
    if not total:  # also of a recording that is shorter than one sample at the other rate
        raise ValueError("has no samples")


def _resampled(
    blocks: Iterable[tuple[int, npt.NDArray[np.float32]]], to_hz: int, max_seconds: float
) -> Iterator[Samples]:
    resampler, count = None, 0
    for rate_hz, samples in blocks:
        resampler = resampler or Resampler(rate_hz, to_hz)
        count += len(samples)
        if count > max_seconds * rate_hz:
            raise _TooLongError
        if not np.isfinite(samples).all():
            raise ValueError("has samples that are not finite numbers")
        yield resampler.push(np.ascontiguousarray(samples.mean(axis=1), np.float32))
    if resampler is not None:
        yield resampler.flush()


def _read(data: bytes) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Blocks of a recording. A cut end is accepted: recorders that are stopped write no mark of it."""
    with open_sound(data) as reader:
        for block in reader.blocks():
            yield reader.rate_hz, block
        if reader.problem and "damaged" in reader.problem:
            raise ValueError(reader.problem)


if __name__ == "__main__":
    main()
