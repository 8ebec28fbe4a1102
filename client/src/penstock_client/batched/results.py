"""The results of a `BatchedStream`, and the answers to its rows that they come in."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_client.batched.wire import END, FINALIZE
from penstock_client.protocol import Result


@dataclass(frozen=True, slots=True)
class StreamResult(Result):
    """What is new in a stream, and why its segment ended."""

    answers_finalize: bool = False
    """True for the final result of a segment that `end_segment` ended."""
    is_last: bool = False
    """True for the stream's last result."""
    end_s: float = 0.0
    """Of a final result: where its segment ends in the stream and the next one begins."""


def stream_result(result: Result, round_trip_s: float, flags: int) -> StreamResult:
    """The result with its round trip; `flags` are those of a row whose newest result it is. `dataclasses.replace` and
    `asdict` would take several times as long.
    """
    return StreamResult(
        result.segment,
        result.text,
        result.is_final,
        result.audio_processed_s,
        result.new_words,
        result.new_tokens,
        result.new_timestamps,
        result.alternatives,
        result.language,
        round_trip_s,
        result.stable_chars,
        result.is_final and not flags & (FINALIZE | END),
        answers_finalize=bool(flags & FINALIZE),
        is_last=bool(flags & END),
        end_s=result.audio_processed_s if result.is_final else 0.0,
    )


class Answer(NamedTuple):
    """What the server has answered to one row of a stream."""

    end_samples: int
    """Samples of the stream up to the row's end."""
    results: Sequence[StreamResult]
    """What is new, in order; empty where nothing is."""
    is_whole: bool = True
    """False for a part of the answer to the last row of a stream of an offline model: more follows."""


OnAnswer = Callable[[int, float], object]
"""Receives the samples of a stream that are answered so far, and the seconds from their push to the answer."""


class Answers:
    """The answers to one stream's rows, in order, until they are taken."""

    def __init__(self, on_answer: OnAnswer | None):
        self.rows = self.samples = 0
        """Answered so far."""
        self._on_answer = on_answer
        self._withheld: list[StreamResult] = []
        """Results of repeated rows, for the next answer."""
        self._waiting: deque[Answer] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, row: int, answer: Answer, round_trip_s: float) -> bool:
        """Adds the answer to the row with this number, from 0. False where that is a repeated row."""
        if row < self.rows:
            self._withheld += answer.results
            return False
        if answer.is_whole:
            self.rows = row + 1
        self.samples = answer.end_samples
        self._waiting.append(answer._replace(results=[*self._withheld, *answer.results]))
        self._withheld = []
        if self._on_answer is not None:
            self._on_answer(answer.end_samples, round_trip_s)
        return True

    def take(self) -> Answer | None:
        """The next answer, or None."""
        return self._waiting.popleft() if self._waiting else None
