"""Which results tell the client of `asr_batch` something new: most rows complete no chunk or no word."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.errors import StreamError
from penstock.pipeline.results import StreamResult
from penstock.pipeline.slots.ticket import START, Column


class NewsFilter:
    """Remembers the last text of each slot's stream."""

    def __init__(self, slots: int):
        self._texts = [""] * slots

    def of_rows(
        self, rows: np.ndarray, answers: Mapping[int, StreamResult | StreamError]
    ) -> dict[int, Sequence[StreamResult] | StreamError]:
        """The news of the answers to a request, and its errors; rows: those of its ticket."""
        return {
            row: answer
            if isinstance(answer, StreamError)
            else self.news(int(rows[row, Column.SLOT]), bool(rows[row, Column.FLAGS] & START), answer.entries)
            for row, answer in sorted(answers.items())
        }

    def news(self, slot: int, is_start: bool, results: Sequence[StreamResult]) -> list[StreamResult]:
        """Those of a request's results with new text, words or tokens, or with the end of a segment."""
        if is_start:
            self._texts[slot] = ""
        found = []
        for result in results:
            if result.is_final or result.words or result.tokens or result.text != self._texts[slot]:
                found.append(result)
            self._texts[slot] = "" if result.is_final else result.text
        return found
