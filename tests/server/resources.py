"""What a server's processes hold: slots, memory, descriptors, threads. Before a trial and after it."""

import os
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.server.conftest import RunningServer
from tests.server.history import Ledger
from tests.server.raw_stream import RawStream
from tests.server.throwaway import processes
from tests.server.voices import Voice, speak, touch

SPARE_DESCRIPTORS = 8
SPARE_MEMORY_MB = 64
SPARE_MEMORY_OF_LARGE_REQUESTS_MB = {"hostile_grpc": 512}
"""Triton keeps up to 4096 gRPC requests for reuse (a launch flag of `penstock serve`), each as large as it once was."""
_CLOSING_S = 5
"""Connections that a client has closed end a little later in the server."""

Figures = dict[str, float | int]


@dataclass(frozen=True)
class Held:
    """By all processes of a server together."""

    descriptors: int
    threads: int
    resident_mb: float
    live_streams: int
    free_slots: int


def read_metrics(server: RunningServer) -> dict[str, float]:
    """Penstock's own metrics by name, without `penstock_`."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^penstock_(\w+)(?:\{\})? (\S+)$", text, re.M)}


def held_by(server: RunningServer) -> Held:
    """Now."""
    group = processes(server.process_id)
    status = "".join(Path(f"/proc/{process}/status").read_text() for process in group)
    metrics = read_metrics(server)
    return Held(
        descriptors=sum(len(os.listdir(f"/proc/{process}/fd")) for process in group),
        threads=sum(map(int, re.findall(r"^Threads:\s+(\d+)", status, re.M))),
        resident_mb=sum(map(int, re.findall(r"^VmRSS:\s+(\d+) kB", status, re.M))) / 1024,
        live_streams=int(metrics["streams_live"]),
        free_slots=int(metrics["slots_free"]),
    )


def wait_until_free(server: RunningServer, timeout_s: float, send: Callable[[], object] | None = None) -> float:
    """Seconds until all slots are free. `send` sends a request (`touch`), which is when the server looks.

    AssertionError after `timeout_s`.
    """
    started = time.monotonic()
    while True:
        send() if send else touch(server)
        if read_metrics(server)["slots_free"] == server.max_streams:
            return time.monotonic() - started
        assert time.monotonic() - started < timeout_s, f"slots are not free after {timeout_s:g} s"
        time.sleep(0.05)


def wait_until_full(server: RunningServer, timeout_s: float) -> None:
    """Until every stream slot has a live stream. AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while read_metrics(server)["streams_live"] < server.max_streams:
        assert time.monotonic() < deadline, f"not all slots are taken after {timeout_s:g} s"
        time.sleep(0.02)


def _warm(server: RunningServer, voices: list[Voice]) -> None:
    """Many streams at once: what a large batch needs stays with the processes."""
    ledger = Ledger()

    def talk(number: int) -> None:
        with RawStream(server.url("grpc"), f"warm-{number}-{time.monotonic_ns()}") as stream:
            speak(stream, voices[0], ledger.open(stream.id, voices[0].spoken))

    count = max(1, min(server.max_streams - 2, 20))
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(talk, range(count)))
    ledger.check()


def run_trial(
    trial: Callable[[RunningServer, list[Voice], int], Figures], server: RunningServer, voices: list[Voice], count: int
) -> Figures:
    """The figures of a trial and what the server holds more than before it. AssertionError where that is too much.

    All slots must be free again; at most SPARE_DESCRIPTORS descriptors and SPARE_MEMORY_MB MiB may have been added.
    """
    _warm(server, voices)
    before = held_by(server)
    figures = trial(server, voices, count)
    wait_until_free(server, server.idle_s + 10)
    deadline = time.monotonic() + _CLOSING_S
    while (after := held_by(server)).descriptors > before.descriptors + SPARE_DESCRIPTORS:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.1)
    spare_mb = SPARE_MEMORY_OF_LARGE_REQUESTS_MB.get(trial.__name__, SPARE_MEMORY_MB)
    assert after.resident_mb <= before.resident_mb + spare_mb, (before, after)
    return figures | {
        "descriptors_grown": after.descriptors - before.descriptors,
        "memory_grown_mb": after.resident_mb - before.resident_mb,
    }
