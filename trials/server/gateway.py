"""A gateway's process for one test, before servers of this machine."""

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import RunError

_START_S = 60.0
_POLL_S = 0.02
_ADDRESSES = re.compile(r"gateway at https?://(\S+:\d+) .* and (\S+:\d+) \(Riva\), metrics at port (\d+)")


class RunningGateway(NamedTuple):
    """HOST:PORT of its ports."""

    http: str
    grpc: str
    metrics: str
    process_id: int


@contextmanager
def fresh_gateway(replicas: str, *flags: str, kept_log: Path | None = None) -> Iterator[RunningGateway]:
    """Starts a gateway on free ports and stops it at the end; `replicas` and `flags`: of `penstock-gateway`.

    It is ready: its ports are open, and it knows a server. Its log goes to a file, and to stderr if the test fails; it
    is appended to `kept_log`. Raises RunError if it does not start.
    """
    command = [sys.executable, "-m", "penstock_gateway", "--replicas", replicas]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *flags]
    with tempfile.TemporaryDirectory(prefix="penstock-gateway-") as folder:
        path = Path(folder) / "log"
        with path.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield _wait_until_ready(process, path)
            except BaseException:
                sys.stderr.write(path.read_text(encoding="utf-8", errors="replace"))
                raise
            finally:
                process.terminate()
                if kept_log is not None:
                    process.wait()
                    with kept_log.open("ab") as kept:
                        kept.write(path.read_bytes())


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> RunningGateway:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = _ADDRESSES.search(text)
        if found and "is up" in text and is_open(found[1]) and is_open(found[2]):
            host = found[1].rpartition(":")[0]
            return RunningGateway(found[1], found[2], f"{host}:{found[3]}", process.pid)
        time.sleep(_POLL_S)
    raise RunError("the gateway did not start; its log is on stderr")


def is_open(address: str) -> bool:
    """Whether a port accepts connections; address: HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False
