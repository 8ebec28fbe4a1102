"""The results of a `BatchedStream`."""

from dataclasses import dataclass

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
