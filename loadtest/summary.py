"""One window's figures as JSON values, and their checks: late chunks, the pass rule, generator and bottleneck.

docs/load_testing.md states the rules."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import isnan

import numpy as np

from loadtest.options import Window
from loadtest.player import COMPLETE, FAILED, REJECTED, Utterance, requests_between
from loadtest.processes import (
    ENSEMBLE,
    GATEWAY,
    MODELS,
    Counters,
    MachineUse,
    ModelTimes,
    Usage,
    machine_use,
    model_times,
    predict_queue,
    read_counters,
    read_usage,
)
from penstock.errors import PenstockError
from penstock.evaluation.errors import EditCounts, compare, total
from penstock.reporting import percentiles_ms

MAX_LATE_SHARE = 0.001
MAX_P95_FINAL_S = 1.0
MIN_ATTEMPTED_SHARE = 0.9
"""Minimum share of the planned audio; a trial that sent less was one of fewer streams."""
MAX_P99_LAG_MS = 20.0
_EXAMPLES = 5


def latencies_s(requests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns latencies in seconds from a table of REQUEST, infinite without an answer.

    [n] from the end of each chunk's audio to the answer that covers it; [m] from the end of each utterance's audio to
    its final text. A request without an answer counts as a chunk: it may have completed one.
    """
    latency_s = requests["answered_s"] - requests["deadline_s"]
    is_chunk = requests["completes_chunk"] | np.isinf(requests["answered_s"])
    return latency_s[is_chunk], latency_s[requests["is_last"]]


def chunk_duration_s(tables: list[np.ndarray]) -> float | None:
    """Infers a server's chunk from the audio that its answers cover; `tables` has one table of REQUEST per utterance.

    Returns the smallest step between two answers, without the first chunk, which may be shorter, and the last request,
    which flushes. None where no utterance has two chunks; too long where every request holds several.
    """
    covered_s = [np.unique(np.round(table["audio_processed_s"][~table["is_last"]], 4)) for table in tables]
    steps_s = [np.diff(covered[covered > 0]) for covered in covered_s]
    found = np.concatenate(steps_s) if steps_s else np.empty(0)
    return round(float(found.min()), 3) if found.size else None


def reasons_to_fail(
    chunks: int, late: int, p95_final_s: float, errors: int, rejections: int, streams: float, attempted: float
) -> list[str]:
    """Returns why a trial of `streams` streams does not pass; empty where it does. `attempted`: streams' worth of audio
    that was sent. Without a chunk or a final text (NaN) a trial does not pass.
    """
    reasons = []
    if not chunks or isnan(p95_final_s):
        reasons.append("too short: no chunk or no final text was measured")
    if late > MAX_LATE_SHARE * chunks:
        reasons.append(f"{late} of {chunks} chunks late, {100 * MAX_LATE_SHARE:g} % are allowed")
    if p95_final_s > MAX_P95_FINAL_S:
        reasons.append(f"p95 of end of audio to final text above {MAX_P95_FINAL_S:g} s")
    if errors:
        reasons.append(f"{errors} streams failed")
    if rejections:
        reasons.append(f"{rejections} streams were rejected")
    if not errors and not rejections and attempted < MIN_ATTEMPTED_SHARE * streams:
        reasons.append(f"only {attempted:.1f} of {streams:g} streams attempted: the load generator fell behind")
    return reasons


def check_generator(lag_p99_ms: float, use: MachineUse) -> tuple[bool, str]:
    """Whether the figures measure the load generator, which sends late, and not the server; and why, as a text.

    `lag_p99_ms` is NaN where nothing was sent.
    """
    if isnan(lag_p99_ms):
        return False, "The load generator sent nothing in this window."
    use_text = f"its busiest process used {use.busiest_generator_cores:.2f} cores, other programs {use.other_cores:.2f}"
    text = f"p99 of its lag {lag_p99_ms:.1f} ms, {use_text} of {use.cores}."
    if lag_p99_ms <= MAX_P99_LAG_MS:
        return False, f"The load generator was on schedule: {text}"
    return True, f"The load generator was late ({MAX_P99_LAG_MS:g} ms are allowed): {text}"


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
    models, metrics_problem = _models(before, after, ENSEMBLE)
    is_bottleneck, generator_text = check_generator(lag_ms["p99"], use)
    attempted = float(requests["audio_s"].sum()) / (end_s - begin_s)
    gateway = use.processes.get(GATEWAY)
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
        "gateway_us_per_100_ms": 1e6 * gateway.cores / (10 * attempted) if gateway and attempted else None,
        "machine": asdict(use),
        "generator": {"lag_ms": lag_ms, "is_bottleneck": is_bottleneck, "text": generator_text},
        "passed": not reasons,
        "reasons": reasons,
    }


def _streams(requests: np.ndarray, chunk_s: float, begin_s: float, end_s: float) -> dict:
    chunk_latency_s, final_latency_s = latencies_s(requests)
    # The capacity rule is about the start of a chunk's step, which a client cannot observe; its answer comes later.
    late = int(np.count_nonzero(chunk_latency_s > chunk_s))
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
