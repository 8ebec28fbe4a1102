"""What a server's processes hold: slots, memory, descriptors, threads. For before and after."""

import os
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.server.conftest import RunningServer
from tests.server.throwaway import processes


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


def wait_until_free(server: RunningServer, touch, timeout_s: float) -> float:
    """Seconds until all slots are free; `touch` sends a request, which is when the server looks. AssertionError."""
    started = time.monotonic()
    while True:
        touch()
        if read_metrics(server)["slots_free"] == server.max_streams:
            return time.monotonic() - started
        assert time.monotonic() - started < timeout_s, f"slots are not free after {timeout_s:g} s"
        time.sleep(0.05)
