"""One window's figures as JSON values, from the streams' records and two snapshots of server and machine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from loadtest.checks import check_generator, find_bottlenecks, late_chunks, latencies_s, reasons_to_fail
from loadtest.options import DIRECT
from loadtest.plan import Window
from loadtest.processes import GATEWAY, MachineUse, Usage, machine_use, read_usage
from loadtest.records import COMPLETE, FAILED, REJECTED, Utterance, requests_between
from loadtest.triton_metrics import (
    BATCHED_ENSEMBLE,
    ENSEMBLE,
    MODELS,
    Counters,
    ModelTimes,
    model_times,
    predict_queue,
    read_counters,
)
from penstock.errors import PenstockError
from penstock.evaluation.errors import EditCounts, compare, total
from penstock.reporting import percentiles_ms

_EXAMPLES = 5


@dataclass(frozen=True)
class Snapshot:
    """Server and machine at one moment."""

    usage: Usage
    counters: Counters | None
    """None where the metrics could not be read; `problem` says why."""
    problem: str | None = None


@dataclass(frozen=True)
class Conditions:
    """Facts of a window that its records do not contain."""

    references: Sequence[str]
    """Transcript of each recording."""
    chunk_s: float
    cores: int
    threads: int = 1
    """Per model."""
    target: str = DIRECT
    """Of --target."""

    @property
    def ensemble(self) -> str:
        """The model that the streams call."""
        return ENSEMBLE if self.target == DIRECT else BATCHED_ENSEMBLE


def take_snapshot(metrics_url: str | None, server_id: int, gateway_id: int) -> Snapshot:
    """Reads server, gateway and machine now; without a URL or with a process id of 0 that part is left out."""
    usage = read_usage(server_id, gateway_id)
    if metrics_url is None:
        return Snapshot(usage, None, "no address of the server's metrics was given (--metrics-url)")
    try:
        return Snapshot(usage, read_counters(metrics_url))
    except PenstockError as error:
        return Snapshot(usage, None, error.message)


def summarize(
    window: Window,
    began_s: float,
    utterances: list[Utterance],
    before: Snapshot,
    after: Snapshot,
    conditions: Conditions,
) -> dict:
    """Returns the figures and checks of `window` of a test that began at `began_s` (seconds since the epoch)."""
    begin_s, end_s = began_s + window.begin_s, began_s + window.end_s
    requests = requests_between(utterances, begin_s, end_s)
    # An utterance belongs to the window in which its last request was sent.
    ended = [utterance for utterance in utterances if begin_s <= utterance.last_sent_s < end_s]
    use = machine_use(before.usage, after.usage, conditions.cores)
    streams, losses = _streams(requests, conditions.chunk_s, begin_s, end_s), _losses(ended)
    rejections = losses["rejections"]["count"]
    lag_ms = percentiles_ms(requests["lag_s"])
    models, metrics_problem = _models(before, after, conditions.ensemble)
    generator = check_generator(lag_ms["p99"], use)
    attempted = float(requests["audio_s"].sum()) / (end_s - begin_s)
    reasons = reasons_to_fail(
        streams["chunks"],
        streams["late_chunks"],
        streams["final_latency_ms"]["p95"] / 1000,
        losses["errors"]["count"],
        rejections,
        window.streams,
        attempted,
    )
    return {
        "streams": window.streams,
        "attempted_streams": attempted,
        "begin_s": window.begin_s,
        "seconds": end_s - begin_s,
        **streams,
        **losses,
        "words": _words(ended, conditions.references),
        "models": {name: _model(times, use.seconds) for name, times in models.items()},
        "metrics_problem": metrics_problem,
        "streams_per_server_core": streams["rtfx"] / use.server_cores if use.server_cores > 0 else None,
        "gateway_us_per_100_ms": _gateway_us(use, attempted),
        "machine": asdict(use),
        "generator": {"lag_ms": lag_ms, **generator._asdict()},
        "passed": not reasons,
        "reasons": reasons,
        "bottlenecks": [
            one._asdict() for one in find_bottlenecks(generator, use, models, rejections, conditions.threads)
        ],
    }


def _streams(requests: np.ndarray, chunk_s: float, begin_s: float, end_s: float) -> dict:
    chunk_latency_s, final_latency_s = latencies_s(requests)
    late = late_chunks(chunk_latency_s, chunk_s)
    answered = requests[np.isfinite(requests["answered_s"])]
    return {
        "chunk_ms": 1000 * chunk_s,
        "chunks": len(chunk_latency_s),
        "late_chunks": late,
        "late_share": late / max(1, len(chunk_latency_s)),
        "chunk_latency_ms": percentiles_ms(chunk_latency_s),
        "finals": len(final_latency_s),
        "final_latency_ms": percentiles_ms(final_latency_s),
        "requests": len(requests),
        "unanswered_requests": len(requests) - len(answered),
        "round_trip_ms": percentiles_ms(answered["answered_s"] - answered["sent_s"]),
        "rtfx": float(answered["audio_s"].sum()) / (end_s - begin_s),
    }


def _losses(ended: list[Utterance]) -> dict:
    rejected = [utterance for utterance in ended if utterance.outcome == REJECTED]
    failed = [utterance.error for utterance in ended if utterance.outcome == FAILED]
    return {
        "utterances": len(ended),
        "rejections": {
            "count": len(rejected),
            "after_ms": percentiles_ms([utterance.rejected_after_s for utterance in rejected]),
        },
        "errors": {
            "count": len(failed),
            "kinds": dict(Counter(error.partition(":")[0] for error in failed)),
            "examples": failed[:_EXAMPLES],
        },
    }


def _words(ended: list[Utterance], references: Sequence[str]) -> dict:
    """Word errors of complete utterances, and the number of recordings with more than one text.

    The latter must be 0: a transcript may not depend on the other streams in the batch.
    """
    complete = [(utterance.recording, utterance.text) for utterance in ended if utterance.outcome == COMPLETE]
    texts: dict[int, set[str]] = {}
    for recording, text in complete:
        texts.setdefault(recording, set()).add(text)
    counts = total(_word_errors(references[recording], text) for recording, text in complete)
    return {
        "utterances": len(complete),
        "wer": counts.rate,
        "words": counts.reference_units,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "recordings": len(texts),
        "recordings_with_several_texts": sum(len(found) > 1 for found in texts.values()),
    }


@lru_cache(maxsize=4096)
def _word_errors(reference: str, text: str) -> EditCounts:
    return compare(reference, text).words


def _models(before: Snapshot, after: Snapshot, ensemble: str) -> tuple[dict[str, ModelTimes], str | None]:
    """Each model's times; empty, with the reason, where they are not known."""
    if before.counters is None or after.counters is None:
        return {}, before.problem or after.problem
    try:
        return {name: model_times(name, before.counters, after.counters) for name in (*MODELS, ensemble)}, None
    except ValueError as error:
        return {}, str(error)


def _gateway_us(use: MachineUse, attempted: float) -> float | None:
    """CPU time of the gateway per 100 ms of audio; None without its process."""
    gateway = use.processes.get(GATEWAY)
    return 1e6 * gateway.cores / (10 * attempted) if gateway and attempted else None


def _model(times: ModelTimes, seconds: float) -> dict:
    """The times with the M/D/1 prediction for the model's batches."""
    batches_per_s = times.batches / seconds
    predicted = predict_queue(batches_per_s, times.compute_ms / 1000)
    return asdict(times) | {
        "compute_ms": times.compute_ms,
        "batch": times.batch,
        "batches_per_s": batches_per_s,
        "predicted_utilization": predicted.utilization,
        "predicted_queue_ms": 1000 * predicted.queue_s,
        "predicted_total_ms": 1000 * predicted.total_s,
    }
