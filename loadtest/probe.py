"""One reading of everything that counts: Triton's counters, and what the processes have used."""

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from loadtest.processes import (
    GENERATOR,
    ProcessUse,
    Usage,
    generator_processes,
    machine_cpu_s,
    process_use,
    server_processes,
    stolen_cpu_s,
)
from loadtest.triton_metrics import Counters, parse_metrics

_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """At one moment."""

    usage: Usage
    counters: Counters | None
    """None where the metrics could not be read; `problem` says why."""
    problem: str | None = None


def take_snapshot(metrics_url: str | None, server_id: int | None) -> Snapshot:
    """What server and machine show now. Without a URL or a process of the server, without these parts."""
    counters, problem = _read_counters(metrics_url)
    groups = server_processes(server_id) if server_id else {}
    processes = {name: process_use(ids) for name, ids in groups.items()}
    generators = {process_id: process_use([process_id]) for process_id in generator_processes()}
    processes[GENERATOR] = sum(generators.values(), ProcessUse(0.0, 0, 0))
    generator_cpu_s = {process_id: use.cpu_s for process_id, use in generators.items()}
    usage = Usage(time.monotonic(), machine_cpu_s(), processes, generator_cpu_s, stolen_cpu_s())
    return Snapshot(usage, counters, problem)


def _read_counters(metrics_url: str | None) -> tuple[Counters | None, str | None]:
    if metrics_url is None:
        return None, "no address of the server's metrics was given (--metrics-url)"
    try:
        with urllib.request.urlopen(metrics_url, timeout=_TIMEOUT_S) as response:
            return parse_metrics(response.read().decode()), None
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{metrics_url}: {getattr(error, 'reason', error)}"
