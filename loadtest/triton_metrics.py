"""Triton's own counters: read from its Prometheus text, and what a member did between two readings. Does no I/O."""

import re
from dataclasses import dataclass

MEMBERS = ("features", "encoder", "decoder")
ENSEMBLE = "asr"

Counters = dict[tuple[str, str], float]
"""(model, metric) -> value; metrics without their prefix `nv_inference_`."""

_LINE = re.compile(r"^nv_inference_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_MODEL = re.compile(r'(?:^|,)model="([^"]*)"')


@dataclass(frozen=True)
class MemberTimes:
    """What one model did between two readings. Times are means over requests; each counts the whole of its batch."""

    requests: float
    batches: float
    failures: float
    total_ms: float
    """From Triton's taking a request in to its answer."""
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
        """Requests in one batch, the mean; 0 where there was none."""
        return self.requests / self.batches if self.batches else 0.0


def parse_metrics(text: str) -> Counters:
    """The counters `nv_inference_*`; several of one model (versions, reasons of failure) are added up."""
    counters: Counters = {}
    for metric, labels, value in _LINE.findall(text):
        model = _MODEL.search(labels)
        if model:
            key = (model.group(1), metric)
            counters[key] = counters.get(key, 0.0) + float(value)
    return counters


def member_times(model: str, before: Counters, after: Counters) -> MemberTimes:
    """What `model` did between two readings; a server that was restarted between them raises ValueError."""

    def gained(metric: str) -> float:
        difference = after.get((model, metric), 0.0) - before.get((model, metric), 0.0)
        if difference < 0:
            raise ValueError(f"nv_inference_{metric} of {model} went back: the server was restarted meanwhile")
        return difference

    requests = gained("request_success")
    times_ms = (
        gained(f"{part}_duration_us") / max(1.0, requests) / 1000
        for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    )
    return MemberTimes(requests, gained("exec_count"), gained("request_failure"), *times_ms)
