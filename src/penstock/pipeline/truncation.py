"""Truncation counters: how often beams exceeded their fixed memory, for metrics and one log line per segment."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

_log = logging.getLogger(__name__)


class TruncationCounters(NamedTuple):
    """Results may depend on chunk borders if a counter is not 0."""

    forced_blanks: int = 0
    """Encoder frames that lagging hypotheses skipped with blanks."""
    pruned_hypotheses: int = 0
    """Hypotheses pruned because their labels differ from the best one's too early for the label buffer."""


NO_TRUNCATION = TruncationCounters()


class TruncationLog:
    """Adds up the counters of one beam decoder's streams."""

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
            self.total = TruncationCounters(
                self.total.forced_blanks + counters.forced_blanks - before.forced_blanks,
                self.total.pruned_hypotheses + counters.pruned_hypotheses - before.pruned_hypotheses,
            )
            self._of_segments[slot] = counters
        if is_final and any(counters):
            _log.warning(
                "penstock decoder: a segment's %s beam was truncated: %d forced blanks, %d pruned hypotheses; "
                "a smaller beam_size avoids it",
                self._decoder,
                *counters,
            )
