"""When a chunk is late and when a trial passes: the capacity rule (docs/load_testing.md). Knows no clock."""

from dataclasses import dataclass

import numpy as np

MOST_LATE_SHARE = 0.001
LONGEST_P95_FINAL_S = 1.0
LEAST_OFFERED_SHARE = 0.9
"""Of the streams that were asked for: with less audio than that, the trial was one of fewer streams."""


@dataclass(frozen=True)
class Chunks:
    """Latencies in seconds, infinite where no answer came."""

    latency_s: np.ndarray
    """[n] from the end of a chunk's audio to the answer that takes it in."""
    final_latency_s: np.ndarray
    """[m] the same for the last piece of an utterance, whose answer is the final text."""

    @classmethod
    def of(cls, pieces: np.ndarray) -> "Chunks":
        """Of a table of pieces. A piece without an answer counts as a chunk: it may have completed one."""
        latency_s = pieces["answered_s"] - pieces["deadline_s"]
        is_chunk = pieces["completes_chunk"] | np.isinf(pieces["answered_s"])
        return cls(latency_s[is_chunk], latency_s[pieces["is_last"]])


def late_chunks(latency_s: np.ndarray, chunk_s: float) -> int:
    """Chunks that were answered more than one chunk's duration after they were complete.

    The rule speaks of the start of a chunk's step, which a client does not see; its answer comes later.
    """
    return int(np.count_nonzero(latency_s > chunk_s))


def reasons_to_fail(chunks: int, late: int, p95_final_s: float, errors: int, refusals: int) -> list[str]:
    """Why a trial does not pass; empty where it does. A trial without a chunk or a final text (NaN) does not."""
    reasons = []
    if not chunks or np.isnan(p95_final_s):
        reasons.append("too short: no chunk or no final text was measured")
    if late > MOST_LATE_SHARE * chunks:
        reasons.append(f"{late} of {chunks} chunks late, {100 * MOST_LATE_SHARE:g} % are allowed")
    if p95_final_s > LONGEST_P95_FINAL_S:
        reasons.append(f"p95 of end of audio to final text above {LONGEST_P95_FINAL_S:g} s")
    if errors:
        reasons.append(f"{errors} streams failed")
    if refusals:
        reasons.append(f"{refusals} streams were refused")
    return reasons


def reason_not_to_count(streams: float, offered: float) -> str | None:
    """Why a trial of `streams` streams proves nothing, where the load generator sent the audio of fewer; else None."""
    if offered >= LEAST_OFFERED_SHARE * streams:
        return None
    return f"only {offered:.1f} of {streams:g} streams were offered: the load generator started late or fell behind"


def chunk_duration_s(tables: list[np.ndarray]) -> float | None:
    """A server's chunk, from how far its answers reached; `tables` has each utterance's pieces.

    The smallest step between two answers, the first chunk left out, which may be shorter, and the last piece, which
    flushes. None where no utterance has two chunks; too long where every piece holds several.
    """
    reached_s = [np.unique(np.round(table["audio_processed_s"][~table["is_last"]], 4)) for table in tables]
    steps_s = [np.diff(reached[reached > 0]) for reached in reached_s]
    found = np.concatenate(steps_s) if steps_s else np.empty(0)
    return round(float(found.min()), 3) if found.size else None
