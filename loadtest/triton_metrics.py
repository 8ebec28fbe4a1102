"""Triton's own counters from its Prometheus text, what a model did between two readings, and the M/D/1 queue."""

import http.client
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import RunError

MODELS = ("features", "encoder", "decoder")
ENSEMBLE, BATCHED_ENSEMBLE = "asr", "asr_batch"

Counters = dict[tuple[str, str], float]
"""(model, metric) -> value; metrics without their prefix `nv_inference_`."""

_TIMEOUT_S = 5.0
_LINE = re.compile(r"^nv_inference_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_MODEL = re.compile(r'(?:^|,)model="([^"]*)"')


@dataclass(frozen=True)
class ModelTimes:
    """What one model did between two readings. Times are means over requests; each counts the whole of its batch."""

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
