"""A window minute by minute: in which of them something went wrong. Does no I/O."""

import numpy as np

from loadtest.pass_rule import Chunks, late_chunks
from loadtest.records import FAILED, REFUSED, Utterance, pieces_between


def by_minute(utterances: list[Utterance], begin_s: float, end_s: float, chunk_s: float) -> list[dict[str, int]]:
    """Chunks, late ones, and streams that were refused or failed in each minute that has begun by `end_s`.

    A chunk belongs to the minute in which its audio was complete, a stream to that in which it was last heard of.
    """
    pieces = pieces_between(utterances, begin_s, end_s)
    trouble = [
        utterance for utterance in utterances if utterance.outcome in (REFUSED, FAILED) and utterance.pieces.size
    ]
    last_s = np.array([utterance.pieces["sent_s"][-1] for utterance in trouble])
    found = []
    for minute_s in np.arange(begin_s, end_s, 60.0):
        latency_s = Chunks.of(_between(pieces, pieces["deadline_s"], minute_s, end_s)).latency_s
        found.append(
            {
                "chunks": len(latency_s),
                "late_chunks": late_chunks(latency_s, chunk_s),
                "streams_lost": len(_between(last_s, last_s, minute_s, end_s)),
            }
        )
    return found


def _between(values: np.ndarray, times_s: np.ndarray, minute_s: float, end_s: float) -> np.ndarray:
    return values[(minute_s <= times_s) & (times_s < min(minute_s + 60.0, end_s))]
