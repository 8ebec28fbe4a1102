"""Which results tell the client of `asr_batch` something new: most rows complete no chunk or no word."""

from collections.abc import Sequence

from penstock.pipeline.results import StreamResult


class NewsFilter:
    """Remembers the last text of each slot's stream."""

    def __init__(self, slots: int):
        self._texts = [""] * slots

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
