"""A gateway's process before a real server."""

import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import IO, NamedTuple

from tests.helpers.server.running import RunningServer

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
        for address in addresses:
            _wait_for_port(address)  # the replica may be up before the ports are open
        try:
            yield addresses
        finally:
            process.terminate()
            reading.join()


def _wait_for_port(address: str) -> None:
    host, port = address.rsplit(":", 1)
    deadline_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=60).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s, address
            time.sleep(0.05)


def _log(stream: IO[str]) -> None:
    for line in stream:
        log.info(line.rstrip())
