"""Resources of a server's processes before and after a trial: slots, memory, descriptors, threads."""

import os
import re
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

from trials.server.raw_stream import RawStream
from trials.server.recordings import Histories, Recording, other_streams, send_empty_stream, stream_all
from trials.server.running import RunningServer, processes, wait_until

SPARE_DESCRIPTORS = 8
SPARE_MEMORY_MB = 64
SPARE_MEMORY_LARGE_REQUESTS_MB = {
    "hostile_grpc": 512,
    "hostile_rows": 512,
    "killed_gateway_clients": 192,  # uploads send larger requests than the streams before a trial
    "stalled_gateway_clients": 192,
}
"""Triton keeps up to 4096 gRPC requests for reuse (a launch flag of `penstock serve`), each as large as it once was."""
_CLOSING_S = 60
"""The server closes connections some time after the client."""

Figures = dict[str, float | int | str]
ServerTrial = Callable[[RunningServer, list[Recording], int], Figures]
"""The number is its size. Raises AssertionError where it failed."""


@dataclass(frozen=True)
class Resources:
    """Sums over all processes of a server."""

    descriptors: int
    threads: int
    resident_mb: float
    live_streams: int
    free_slots: int


def read_metrics(server: RunningServer) -> dict[str, float]:
    """Returns Penstock's own metrics by name, without the prefix `penstock_`."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^penstock_(\w+)(?:\{\})? (\S+)$", text, re.M)}


def read_resources(server: RunningServer) -> Resources:
    """Reads the resources now."""
    group = processes(server.process_id)
    status = "".join(Path(f"/proc/{process}/status").read_text() for process in group)
    metrics = read_metrics(server)
    return Resources(
        descriptors=sum(len(os.listdir(f"/proc/{process}/fd")) for process in group),
        threads=sum(map(int, re.findall(r"^Threads:\s+(\d+)", status, re.M))),
        resident_mb=sum(map(int, re.findall(r"^VmRSS:\s+(\d+) kB", status, re.M))) / 1024,
        live_streams=int(metrics["streams_live"]),
        free_slots=int(metrics["slots_free"]),
    )


def wait_until_free(server: RunningServer, timeout_s: float, slots: int | None = None) -> float:
    """Returns the seconds until that many slots are free (all); AssertionError after `timeout_s`."""

    def is_free() -> bool:
        send_empty_stream(server)  # upon which the server expires idle streams
        return read_metrics(server)["slots_free"] >= (server.max_streams if slots is None else slots)

    return wait_until(is_free, timeout_s, "slots are not free")


def _warm_up(server: RunningServer, recordings: list[Recording]) -> None:
    """Sends many streams at once: the processes keep the memory of a large batch."""
    histories = Histories()

    def run_stream(number: int) -> None:
        with RawStream(server.url("grpc"), f"warm-{number}-{time.monotonic_ns()}") as stream:
            stream_all(stream, recordings[0], histories.open(stream.id, recordings[0].expected))

    count = max(1, min(server.max_streams - 2, 20))
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run_stream, range(count)))
    histories.check()


def beside_others(trial: ServerTrial) -> ServerTrial:
    """The trial with whole streams one after the other beside it, whose number is added to its figures."""

    @wraps(trial)
    def run(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
        with other_streams(server, recordings, count=1) as others:
            figures = trial(server, recordings, count)
        return {**figures, "other_streams": others.whole}

    return run


def run_trial(
    trial: ServerTrial,
    server: RunningServer,
    recordings: list[Recording],
    count: int,
) -> Figures:
    """Runs a trial; returns its figures and the growth of the server's resources. AssertionError beyond the limits.

    All slots must be free again; at most SPARE_DESCRIPTORS descriptors and SPARE_MEMORY_MB MiB may have been added.
    """
    _warm_up(server, recordings)
    wait_until_free(server, server.idle_s + 10)
    before = read_resources(server)
    figures = trial(server, recordings, count)
    wait_until_free(server, server.idle_s + 60)
    most = before.descriptors + SPARE_DESCRIPTORS
    wait_until(lambda: read_resources(server).descriptors <= most, _CLOSING_S, f"more than {most} descriptors", 0.1)
    after = read_resources(server)
    spare_mb = SPARE_MEMORY_LARGE_REQUESTS_MB.get(trial.__name__, SPARE_MEMORY_MB)
    assert after.resident_mb <= before.resident_mb + spare_mb, (before, after)
    return figures | {
        "descriptors_grown": after.descriptors - before.descriptors,
        "memory_grown_mb": after.resident_mb - before.resident_mb,
    }
