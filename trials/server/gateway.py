"""A gateway's process before a real server."""

import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import IO, NamedTuple

from loadtest.fresh_gateway import is_open
from trials.server.running import RunningServer

log = logging.getLogger("gateway process")
log.setLevel(logging.INFO)  # pytest shows the lines of a test that fails


class Addresses(NamedTuple):
    """HOST:PORT of the ports of a gateway."""

    http: str
    grpc: str


@contextmanager
def running_gateway(server: RunningServer, *flags: str) -> Iterator[Addresses]:
    """Its addresses, once it knows the server. Segments end with their recording, unless flags say else."""
    command = [
        sys.executable, "-m", "penstock_gateway", "--replicas", server.url("grpc"), "--http-port", "0", "--grpc-port",
        "0", "--metrics-port", "0", "--endpoint-silence-ms", "0", "--timeout-s", "60", *flags,
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        while not (lines and "is up" in lines[-1]):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        found = re.search(r"gateway at https?://(\S+:\d+) .* and (\S+:\d+) ", lines[0])
        assert found, lines
        reading = Thread(target=_log, args=(process.stderr,), daemon=True)  # a full pipe would stop the gateway
        reading.start()
        addresses = Addresses(*found.groups())
        deadline_s = time.monotonic() + 60
        while not all(map(is_open, addresses)):  # the replica may be up before the ports are open
            assert time.monotonic() < deadline_s, lines
            time.sleep(0.05)
        try:
            yield addresses
        finally:
            process.terminate()
            reading.join()


def _log(stream: IO[str]) -> None:
    for line in stream:
        log.info(line.rstrip())
