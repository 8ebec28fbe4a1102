"""Numbers of a stream's speakers, which stay where it moves to another server that numbers them anew. No I/O."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from penstock_client import limits
from penstock_common.results import Result, Word, later, with_speakers

T = TypeVar("T", bound=Result)


class SpeakerNumbers:
    """The caller's numbers of speakers. Times are those of the caller's stream."""

    def __init__(self) -> None:
        self._segment: list[Word] = []
        """Words of the server's current segment."""
        self._reported: deque[Word] = deque()
        """Words of finals that the caller has, with the caller's numbers."""
        self._highest = 0
        """The highest number that the caller has."""
        self._numbers: dict[int, int] | None = None
        """The caller's number by the server's; None on the first server, which gives the caller's."""
        self._overlaps_ms: Counter[tuple[int, int]] = Counter()
        """By the server's number and the caller's: for how long the words of both overlap."""

    def restart(self) -> None:
        """The next result is of another server."""
        # Not None: from here on the server's numbers are not the caller's.
        self._segment, self._numbers = [], {}
        self._overlaps_ms.clear()

    def words(self, result: Result, shift_ms: int) -> list[Word]:
        """Takes the server's next result. Of a final one: the words of its segment with the server's numbers.

        shift_ms: added to its times.
        """
        self._segment += later(result.new_words, shift_ms)
        if not result.is_final:
            return []
        words, self._segment = self._segment, []
        has_all = len(result.word_speakers) == len(words)
        return with_speakers(words, result.word_speakers) if has_all else words

    def match(self, words: Sequence[Word]) -> None:
        """Compares words that the caller has, from the present server, with those of the server before."""
        for word in words:
            for old in self._reported:
                overlap_ms = min(word.end_ms, old.end_ms) - max(word.start_ms, old.start_ms)
                if overlap_ms > 0 and word.speaker is not None and old.speaker is not None:
                    self._overlaps_ms[word.speaker, old.speaker] += overlap_ms

    def renumbered(self, result: T, words: Sequence[Word]) -> T:
        """A final result, of these words, with the caller's numbers."""
        numbers = {who: self._number(who) for who in result.word_speakers}
        named = [replace(word, speaker=numbers.get(word.speaker)) for word in words]
        self._reported.extend(named)
        kept_ms = 1000 * (limits.SPEAKER_CONTEXT_S + limits.WARM_UP_S)
        while self._reported and self._reported[0].end_ms < self._reported[-1].end_ms - kept_ms:
            self._reported.popleft()
        speakers = tuple(word.speaker for word in named) if result.word_speakers else ()
        newest = speakers[len(speakers) - len(result.new_words) :]
        return replace(
            result,
            new_words=tuple(with_speakers(result.new_words, newest)) if speakers else result.new_words,
            word_speakers=speakers,
            alternatives=tuple(
                replace(each, words=tuple(replace(word, speaker=self._number(word.speaker)) for word in each.words))
                for each in result.alternatives
            ),
        )

    def _number(self, who: int | None) -> int | None:
        """The caller's number: of the one whose words overlap most, else one that the caller does not have yet."""
        if who is None:
            return None
        if self._numbers is None:
            self._highest = max(self._highest, who)
            return who
        # The longest overlap first: each number of the caller stands for one speaker.
        for (new, old), _ in self._overlaps_ms.most_common():
            if new not in self._numbers and old not in self._numbers.values():
                self._numbers[new] = old
        self._overlaps_ms.clear()
        if who not in self._numbers:
            self._highest += 1
            self._numbers[who] = self._highest
        return self._numbers[who]
