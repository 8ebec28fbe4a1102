"""Selects the results that are new to the client of `asr_batch`: most rows complete no chunk or no word."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.errors import StreamError
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.ticket import POLL, START, Column


class ResultChanges:
    """Remembers the last text of each slot's stream."""

    def __init__(self, slots: int):
        self._texts = [""] * slots

    def of_rows(
        self, rows: np.ndarray, answers: Mapping[int, StreamResult | StreamError]
    ) -> dict[int, Sequence[StreamResult] | StreamError]:
        """What is new in the answers to a request, its errors, and all answers to polls; rows: those of its ticket."""
        changed: dict[int, Sequence[StreamResult] | StreamError] = {}
        is_start = (rows[:, Column.FLAGS] & START > 0) & (rows[:, Column.SLOT] >= 0)
        starts = set(np.flatnonzero(is_start).tolist())
        for row in sorted(starts | answers.keys()):
            slot = int(rows[row, Column.SLOT])
            if row in starts:  # also of a row without an answer: the slot's last stream may have ended without a final
                self._texts[slot] = ""
            if (answer := answers.get(row)) is not None:
                if isinstance(answer, StreamError):
                    changed[row] = answer
                    continue
                changes = self.of_results(slot, answer.entries)
                changed[row] = answer.entries if rows[row, Column.FLAGS] & POLL else changes
        return changed

    def of_results(self, slot: int, results: Sequence[StreamResult]) -> list[StreamResult]:
        """Those of a request's results with new text, words or tokens, or with the end of a segment."""
        changed = []
        for result in results:
            if result.is_final or result.words or result.tokens or result.text != self._texts[slot]:
                changed.append(result)
            self._texts[slot] = "" if result.is_final else result.text
        return changed
