"""CPU time and memory of the processes of server, gateway and load generator, and Triton's own counters.

A process name is "tritonserver", a model's name for its stub, "gateway", or "load generator"."""

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.errors import RunError

MODELS = ("features", "encoder", "decoder")
ENSEMBLE = "asr_batch"

Counters = dict[tuple[str, str], float]
"""(model, metric) -> value; metrics without their prefix `nv_inference_`."""

_TIMEOUT_S = 5.0
_LINE = re.compile(r"^nv_inference_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_MODEL = re.compile(r'(?:^|,)model="([^"]*)"')
SERVER = "tritonserver"
GATEWAY = "gateway"
"""With the process that decodes its uploads."""
GENERATOR = "load generator"
_MEMORY = ("Pss_Anon:", "Pss_Shmem:")


@dataclass(frozen=True)
class ModelTimes:
    """Work of a model between two readings. Times are means over requests; each counts the whole of its batch."""

    requests: float
    batches: float
    failures: float
    total_ms: float
    """From Triton's receiving a request to its answer."""
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float

    @property
    def compute_ms(self) -> float:
        """Input, inference and output."""
        return self.input_ms + self.infer_ms + self.output_ms

    @property
    def batch(self) -> float:
        """Mean requests per batch; 0 without a batch."""
        return self.requests / self.batches if self.batches else 0.0


class Prediction(NamedTuple):
    """Means of an M/D/1 queue, in seconds; infinite if more arrives than can be served."""

    utilization: float
    """lambda / mu: the share of time in which the server is busy."""
    queue_s: float
    total_s: float


def read_counters(url: str) -> Counters:
    """Fetches the counters of a server's metrics page. Raises RunError with the reason."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            return parse_metrics(response.read().decode())
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        raise RunError(f"{url}: {getattr(error, 'reason', error)}") from error


def parse_metrics(text: str) -> Counters:
    """Reads the counters `nv_inference_*`; several of one model (versions, failure reasons) are added up."""
    counters: Counters = {}
    for metric, labels, value in _LINE.findall(text):
        if model := _MODEL.search(labels):
            key = (model.group(1), metric)
            counters[key] = counters.get(key, 0.0) + float(value)
    return counters


def model_times(model: str, before: Counters, after: Counters) -> ModelTimes:
    """Returns what `model` did between two readings. ValueError where the server was restarted between them."""

    def gained(metric: str) -> float:
        difference = after.get((model, metric), 0.0) - before.get((model, metric), 0.0)
        if difference < 0:
            raise ValueError(f"nv_inference_{metric} of {model} decreased: the server was restarted")
        return difference

    requests = gained("request_success")
    times_ms = (
        gained(f"{part}_duration_us") / max(1.0, requests) / 1000
        for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    )
    return ModelTimes(requests, gained("exec_count"), gained("request_failure"), *times_ms)


def predict_queue(arrivals_per_s: float, service_s: float) -> Prediction:
    """Returns the M/D/1 prediction for batches that arrive at a Poisson rate lambda and take D = 1 / mu each.

    Galvez, Kaldewey, "GPU-accelerated WFST beam search decoder for CTC-based speech recognition", section 3.1: the mean
    latency is 1 / mu + lambda / (2 mu (mu - lambda)).
    """
    utilization = arrivals_per_s * service_s
    if utilization >= 1:
        return Prediction(utilization, float("inf"), float("inf"))
    queue_s = utilization * service_s / (2 * (1 - utilization))  # the formula's second term with mu = 1 / service_s
    return Prediction(utilization, queue_s, service_s + queue_s)


@dataclass(frozen=True)
class Usage:
    """One reading of the machine; CPU times count from its boot or from a process's start."""

    time_s: float
    """Monotonic clock."""
    busy_s: float
    """CPU seconds of all cores, by any process."""
    steal_s: float = 0.0
    """CPU seconds that the host of a virtual machine gave to others; 0 where it does not report them."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """Process name -> CPU seconds."""
    pss_mib: Mapping[str, float] = field(default_factory=dict)
    """Process name -> proportional set size: a shared page counts by its part, so that these add up. Without the pages
    of files, whose parts depend on other programs with the same libraries, and which the kernel drops when it must."""
    generator_cpu_s: Mapping[int, float] = field(default_factory=dict)
    """Process id -> CPU seconds of each load generator process on this machine."""


@dataclass(frozen=True)
class ProcessUse:
    """One process name between two readings; memory at the end."""

    cores: float
    """CPU seconds per second."""
    pss_mib: float
    pss_growth_mib: float


@dataclass(frozen=True)
class MachineUse:
    """The machine between two readings."""

    seconds: float
    cores: int
    busy_cores: float
    server_cores: float
    other_cores: float
    """Used by programs that are neither the load generator nor a server or gateway whose process is known."""
    busiest_generator_cores: float
    """The busiest load generator process; at most one core, since Python runs one thread at a time."""
    steal_percent: float
    """CPU steal, as a share of all cores."""
    processes: dict[str, ProcessUse]


def read_usage(server_id: int = 0, gateway_id: int = 0) -> Usage:
    """Reads the machine now; with a process id of 0 the processes of the server or of the gateway are left out."""
    times = psutil.cpu_times()
    groups = server_processes(server_id) if server_id else {}
    if gateway_id:
        groups[GATEWAY] = [process.pid for process in _family(gateway_id)]
    generators = [process.pid for process in _family(os.getpid())]  # Locust's workers, and what plays the streams
    readings = {name: read_processes(ids) for name, ids in (groups | {GENERATOR: generators}).items()}
    return Usage(
        time.monotonic(),
        times.user + times.nice + times.system + times.irq + times.softirq,
        getattr(times, "steal", 0.0),
        {name: cpu_s for name, (cpu_s, _) in readings.items()},
        {name: pss_mib for name, (_, pss_mib) in readings.items()},
        {process_id: read_processes([process_id])[0] for process_id in generators},
    )


def machine_use(before: Usage, after: Usage, cores: int) -> MachineUse:
    """Returns the use between two readings of a machine with `cores` cores; a new process counts from 0."""
    seconds = after.time_s - before.time_s
    if not seconds > 0:
        raise ValueError(f"the readings are {seconds:g} s apart, expected the second to be later")
    processes = {
        name: ProcessUse(
            (cpu_s - before.cpu_s.get(name, 0.0)) / seconds,
            after.pss_mib[name],
            after.pss_mib[name] - before.pss_mib.get(name, after.pss_mib[name]),
        )
        for name, cpu_s in after.cpu_s.items()
    }
    generators = [
        (cpu_s - before.generator_cpu_s.get(process_id, 0.0)) / seconds
        for process_id, cpu_s in after.generator_cpu_s.items()
    ]
    busy = (after.busy_s - before.busy_s) / seconds
    return MachineUse(
        seconds,
        cores,
        busy,
        server_cores=sum(use.cores for name, use in processes.items() if name not in (GATEWAY, GENERATOR)),
        other_cores=max(0.0, busy - sum(use.cores for use in processes.values())),
        busiest_generator_cores=max(generators, default=0.0),
        steal_percent=100 * (after.steal_s - before.steal_s) / (seconds * cores),
        processes=processes,
    )


def server_processes(server_id: int) -> dict[str, list[int]]:
    """Process name -> process ids of a tritonserver and its stubs; empty where there is no such process."""
    found: dict[str, list[int]] = {}
    for process in _family(server_id):
        try:
            command_line = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        # A stub's command line holds the path of its model.
        name = next((model for model in MODELS if f"/{model}/1/model.py" in command_line), SERVER)
        found.setdefault(name, []).append(process.pid)
    return found


def _family(process_id: int) -> list[psutil.Process]:
    """A process and its descendants; empty where it has ended."""
    try:
        process = psutil.Process(process_id)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def read_processes(process_ids: Iterable[int]) -> tuple[float, float]:
    """CPU seconds and PSS MiB of processes together; one that has ended or belongs to another user counts as 0."""
    cpu_s = pss_mib = 0.0
    for process_id in process_ids:
        try:
            process = psutil.Process(process_id)
            times = process.cpu_times()
            lines = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
        cpu_s += times.user + times.system
        pss_mib += sum(int(line.split()[1]) for line in lines if line.startswith(_MEMORY)) / 1024
    return cpu_s, pss_mib
