"""Truncation counters: how often beams exceeded their fixed memory, for metrics and one log line per segment."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

_log = logging.getLogger(__name__)


class TruncationCounters(NamedTuple):
    """Results may depend on chunk borders if one of the first two is not 0."""

    forced_blanks: int = 0
    """Encoder frames that lagging hypotheses skipped with blanks."""
    pruned_hypotheses: int = 0
    """Hypotheses pruned because their labels differ from the best one's too early for the label buffer."""
    narrowed_frames: int = 0
    """Times that a search over a decoding graph followed fewer arcs than its beam holds."""
    dropped_tokens: int = 0
    """Tokens of such a search dropped because the pieces and words of their paths outgrew their memory."""


NO_TRUNCATION = TruncationCounters()


class TruncationLog:
    """Adds up the counters of one decoder's streams."""

    def __init__(self, decoder: str, slots: int):
        self.total = NO_TRUNCATION
        """Sum over all streams since the start."""
        self._decoder = decoder
        self._of_segments = [NO_TRUNCATION] * slots

    def begin(self, slots: Sequence[int]) -> None:
        """Resets the counters of slots in which a segment begins."""
        for slot in slots:
            self._of_segments[slot] = NO_TRUNCATION

    def add(self, slot: int, counters: TruncationCounters, is_final: bool) -> None:
        """Records a segment's counters, counted from its start; with `is_final` logs them if any is not 0."""
        before = self._of_segments[slot]
        if counters != before:
            sums = zip(self.total, counters, before, strict=True)
            self.total = TruncationCounters(*(total + new - old for total, new, old in sums))
            self._of_segments[slot] = counters
        if is_final and any(counters):
            losses = [f"{count} {name.replace('_', ' ')}" for name, count in counters._asdict().items() if count]
            _log.warning(
                "penstock decoder: a segment's %s beam was truncated: %s; a smaller beam avoids it",
                self._decoder,
                ", ".join(losses),
            )
