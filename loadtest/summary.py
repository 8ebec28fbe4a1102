"""One window's figures as JSON values, from the notes of the streams and two snapshots. Does no I/O."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from loadtest.machine_use import machine_use, server_cores
from loadtest.minutes import by_minute
from loadtest.pass_rule import Chunks, late_chunks, reason_not_to_count, reasons_to_fail
from loadtest.plan import Window
from loadtest.probe import Snapshot
from loadtest.queueing import predict
from loadtest.records import COMPLETE, FAILED, REFUSED, Utterance, pieces_between
from loadtest.triton_metrics import ENSEMBLE, MEMBERS, MemberTimes, member_times
from loadtest.verdicts import find_exhausted, judge_generator
from penstock.evaluation.word_errors import EditCounts, compare, total
from penstock.reporting.percentiles import percentiles_ms

_EXAMPLES = 5


@dataclass(frozen=True)
class Setting:
    """What a window's notes do not tell."""

    references: Sequence[str]
    """What is said in each recording."""
    chunk_s: float
    cores: int
    threads: int = 1
    """Of each member."""


def summarise(
    window: Window, began_s: float, utterances: list[Utterance], before: Snapshot, after: Snapshot, setting: Setting
) -> dict:
    """The figures of `window` of a test that began at `began_s` (records.py), with their verdicts."""
    begin_s, end_s = began_s + window.begin_s, began_s + window.end_s
    pieces = pieces_between(utterances, begin_s, end_s)
    ended = [utterance for utterance in utterances if _ended_between(utterance, begin_s, end_s)]
    use = machine_use(before.usage, after.usage, setting.cores)
    streams = _streams(pieces, setting.chunk_s, end_s - begin_s)
    trouble = _trouble(ended)
    lag_ms = percentiles_ms(pieces["lag_s"])
    members, metrics_problem = _members(before, after)
    generator = judge_generator(lag_ms["p99"], use)
    refusals = trouble["refusals"]["count"]
    reasons = reasons_to_fail(
        streams["chunks"],
        streams["late_chunks"],
        streams["final_latency_ms"]["p95"] / 1000,
        trouble["errors"]["count"],
        refusals,
    )
    offered = float(pieces["audio_s"].sum()) / (end_s - begin_s)
    if not refusals and not trouble["errors"]["count"] and (reason := reason_not_to_count(window.streams, offered)):
        reasons.append(reason)
    return {
        "streams": window.streams,
        "offered_streams": offered,
        "begin_s": window.begin_s,
        "seconds": end_s - begin_s,
        **streams,
        **trouble,
        "minutes": by_minute(utterances, begin_s, end_s, setting.chunk_s),
        "words": _words(ended, setting.references),
        "members": {name: _member(times, use.seconds) for name, times in members.items()},
        "metrics_problem": metrics_problem,
        "split_ms": _split(pieces, members),
        "machine": use.document() | {"server_cores": server_cores(use)},
        "generator": {"lag_ms": lag_ms, **asdict(generator)},
        "passed": not reasons,
        "reasons": reasons,
        "exhausted": [asdict(found) for found in find_exhausted(generator, use, members, refusals, setting.threads)],
    }


def _streams(pieces: np.ndarray, chunk_s: float, seconds: float) -> dict:
    chunks = Chunks.of(pieces)
    late = late_chunks(chunks.latency_s, chunk_s)
    answered = pieces[np.isfinite(pieces["answered_s"])]
    round_trip_s = answered["answered_s"] - answered["sent_s"]
    return {
        "chunk_ms": 1000 * chunk_s,
        "chunks": len(chunks.latency_s),
        "late_chunks": late,
        "late_share": late / max(1, len(chunks.latency_s)),
        "chunk_latency_ms": percentiles_ms(chunks.latency_s),
        "finals": len(chunks.final_latency_s),
        "final_latency_ms": percentiles_ms(chunks.final_latency_s),
        "pieces": len(pieces),
        "unanswered_pieces": len(pieces) - len(answered),
        "round_trip_ms": percentiles_ms(round_trip_s),
        "rtfx": float(answered["audio_s"].sum()) / seconds,
    }


def _ended_between(utterance: Utterance, begin_s: float, end_s: float) -> bool:
    """By the moment at which its last piece was sent; one of which nothing was sent counts nowhere."""
    return utterance.pieces.size > 0 and begin_s <= utterance.pieces["sent_s"][-1] < end_s


def _trouble(ended: list[Utterance]) -> dict:
    refused = [utterance for utterance in ended if utterance.outcome == REFUSED]
    failed = [utterance.error for utterance in ended if utterance.outcome == FAILED]
    return {
        "utterances": len(ended),
        "refusals": {
            "count": len(refused),
            "after_ms": percentiles_ms([utterance.refused_after_s for utterance in refused]),
        },
        "errors": {
            "count": len(failed),
            "kinds": dict(Counter(error.partition(":")[0] for error in failed)),
            "examples": failed[:_EXAMPLES],
        },
    }


def _words(ended: list[Utterance], references: Sequence[str]) -> dict:
    """Word errors of the utterances that were heard to their end, and how many recordings had more than one text.

    Which streams shared a batch may not change what is heard.
    """
    heard = [(utterance.recording, utterance.text) for utterance in ended if utterance.outcome == COMPLETE]
    texts: dict[int, set[str]] = {}
    for recording, text in heard:
        texts.setdefault(recording, set()).add(text)
    counts = total(_word_errors(references[recording], text) for recording, text in heard)
    return {
        "utterances": len(heard),
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


def _members(before: Snapshot, after: Snapshot) -> tuple[dict[str, MemberTimes], str | None]:
    """What each member did; nothing, and why, where that is not known."""
    if before.counters is None or after.counters is None:
        return {}, before.problem or after.problem
    try:
        return {name: member_times(name, before.counters, after.counters) for name in (*MEMBERS, ENSEMBLE)}, None
    except ValueError as error:
        return {}, str(error)


def _member(times: MemberTimes, seconds: float) -> dict:
    """With the wait that M/D/1 predicts for a member that gets so many batches a second."""
    arrivals_per_s = times.batches / seconds
    predicted = predict(arrivals_per_s, times.compute_ms / 1000)
    return asdict(times) | {
        "compute_ms": times.compute_ms,
        "batch": times.batch,
        "batches_per_s": arrivals_per_s,
        "predicted_utilisation": predicted.utilisation,
        "predicted_queue_ms": 1000 * predicted.queue_s,
        "predicted_total_ms": 1000 * predicted.total_s,
    }


def _split(pieces: np.ndarray, members: dict[str, MemberTimes]) -> dict[str, float]:
    """Where the mean request's time went, in ms, in the order of its way; empty without the server's counters."""
    answered = pieces[np.isfinite(pieces["answered_s"])]
    if not members or not len(answered):
        return {}
    round_trip_ms = 1000 * float((answered["answered_s"] - answered["sent_s"]).mean())
    ensemble_ms = members[ENSEMBLE].total_ms
    split = {
        "load generator's lag": 1000 * float(answered["lag_s"].mean()),
        "network and client": max(0.0, round_trip_ms - ensemble_ms),
    }
    for name in MEMBERS:
        split[f"{name}: queue"] = members[name].queue_ms
        split[f"{name}: compute"] = members[name].compute_ms
    inside_ms = sum(members[name].queue_ms + members[name].compute_ms for name in MEMBERS)
    return split | {"between members": max(0.0, ensemble_ms - inside_ms)}
