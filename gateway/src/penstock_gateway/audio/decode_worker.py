"""The process that decodes recordings, each in a fork of its own with limits of memory and CPU time.

It has no threads and no gRPC, so it can fork, and a fork has all libraries. An order comes on standard input, a socket,
with three descriptors: the recording, the pipe for its samples, and a socket. There the fork sends a descriptor of
itself, by which the gateway ends it, and this process sends the fork's exit status.

A block has the numbers of its samples and tracks (uint32), the time of the recording's first sample (float64) and the
samples (float32), little-endian. After the last one come zeros and a JSON object: the remarks, and why there are no
more samples. The limits are there because decoders of compressed formats read untrusted data.
"""

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import TrackReader
from penstock_gateway.limits import MAX_CHANNELS

MAX_MEMORY_BYTES = 96 << 20
"""Address space of one recording, beside that of the libraries."""
MAX_CPU_S, MAX_QUIET_CPU_S = 120, 40
"""CPU time of a recording in all, and until its first block or from one to the next."""
NICENESS = 10
MAX_ORDER_BYTES = 4096
_OF_A_RECORDING = {errno.EPIPE, errno.EINVAL, errno.ENOMEM}
"""The reader has stopped, a wrong place in the file, or too much memory; all other errors are the system's."""


def main() -> None:
    """Forks for each order, until the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides
    import av.logging  # noqa: F401, so that forks have it

    with socket.socket(fileno=os.dup(0)) as orders:
        run_orders(orders)


class _Running(NamedTuple):
    pid: int
    control: socket.socket
    """The gateway's, which waits for the end."""


def run_orders(orders: socket.socket) -> None:
    """Forks for each order and reports how each fork has ended, until the other end of `orders` is closed.

    It waits for both with one call: a SIGCHLD that comes just before a blocking read of orders would not interrupt it,
    so its handler would not run.
    """
    with selectors.PollSelector() as waiting:
        waiting.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not orders:
                    waiting.unregister(key.fileobj)
                    _report_end(key.fd, key.data)
                    continue
                message, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 3)
                forks = [each.data for each in waiting.get_map().values() if each.data]
                if not message:
                    for fork in forks:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(fork.pid, signal.SIGKILL)
                    return
                recording, pipe, control = descriptors
                fork = _forked(message, recording, pipe, control, [orders, *(each.control for each in forks)])
                if fork is not None:
                    waiting.register(os.pidfd_open(fork.pid), selectors.EVENT_READ, fork)


def _forked(
    message: bytes, recording: int, pipe: int, control: int, others: Sequence[socket.socket]
) -> _Running | None:
    """Starts the fork of an order, which closes `others`. None if it cannot start: then the order's pipe says so."""
    try:
        pid = os.fork()
    except OSError as error:
        reason = f"no recording can be decoded: {error.strerror}"
        with contextlib.suppress(BrokenPipeError), open(pipe, "wb", closefd=False) as out:
            _end(out, {"code": "OVERLOADED", "message": reason})
        os.close(control)
        return None
    else:
        own = socket.socket(fileno=control)
        if pid == 0:
            for each in others:
                each.close()
            _run(json.loads(message), recording, pipe, own)
        return _Running(pid, own)
    finally:
        os.close(recording)
        os.close(pipe)


def _report_end(descriptor: int, fork: _Running) -> None:
    """Reports to the gateway how a fork has ended."""
    os.close(descriptor)
    _, status = os.waitpid(fork.pid, 0)
    with fork.control, contextlib.suppress(OSError):  # it does not wait any more
        fork.control.send(b"%d" % os.waitstatus_to_exitcode(status))


def _run(order: Mapping[str, Any], recording: int, pipe: int, control: socket.socket) -> None:
    """Decodes one recording and ends this process. Its exit status is the number of an error of the system, or 0."""
    status = 0
    try:
        socket.send_fds(control, [b"-"], [os.pidfd_open(os.getpid())])
        os.nice(NICENESS)
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[0])  # of the libraries
        memory_bytes = pages * resource.getpagesize() + MAX_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_cpu()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)  # the socket of orders, whose end the gateway has to see
        os.dup2(null, 2)  # decoders remark on every damaged frame
        # Not the descriptor itself, which has one position in all processes.
        with open(f"/proc/self/fd/{recording}", "rb") as file, open(pipe, "wb") as out:
            write_samples(order, file, out)
    except (OSError, MemoryError) as error:  # the reader sees that the end is missing
        code = getattr(error, "errno", None) or 0
        status = 0 if code in _OF_A_RECORDING else code
    finally:
        os._exit(status)


def _limit_cpu() -> None:
    """Ends this process by SIGXCPU where no block follows within `MAX_QUIET_CPU_S`: not all input becomes samples."""
    soft = min(MAX_CPU_S, round(time.process_time()) + MAX_QUIET_CPU_S)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, MAX_CPU_S + 1))


def write_samples(order: Mapping[str, Any], recording: BinaryIO, out: BinaryIO) -> None:
    """Decodes a recording as the order says. OSError where the system does not let it."""
    failure: dict[str, str] = {}
    remarks: list[Remark] = []
    try:
        with contextlib.closing(TrackReader(recording, order["rate_hz"], order["channel"], MAX_CHANNELS)) as reader:
            samples = 0
            for tracks in reader.blocks():
                size = tracks[0].size
                samples += size
                if samples > order["max_seconds"] * order["rate_hz"]:
                    failure = {"code": "TOO_LARGE", "message": f"the audio is longer than {order['max_seconds']:g} s"}
                    break
                if size:  # an empty block would be the last one
                    head = struct.pack("<IId", size, len(tracks), reader.start_s)
                    out.write(b"".join([head, *(track.tobytes() for track in tracks)]))
                    _limit_cpu()
            else:
                remarks = reader.remarks
            if not samples:
                raise ValueError("has no samples")
    except (ValueError, ImportError) as error:
        if isinstance(cause := error.__cause__, OSError) and cause.errno not in {None, *_OF_A_RECORDING}:
            raise cause from None
        reason = {"has no audio": "is empty"}.get(str(error), str(error))
        verb = "is " if reason.startswith("not ") else ""
        failure = {"code": "AUDIO_INVALID", "message": f"the audio {verb}{reason}"}
    _end(out, failure, remarks)


def _end(out: BinaryIO, failure: Mapping[str, str], remarks: Sequence[Remark] = ()) -> None:
    """Writes what follows the last block."""
    out.write(struct.pack("<IId", 0, 0, 0.0) + json.dumps({"failure": failure, "remarks": remarks}).encode())
    out.flush()


if __name__ == "__main__":
    main()
