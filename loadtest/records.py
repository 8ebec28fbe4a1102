"""What one utterance's stream went through: each piece with its times, and how it ended. Knows no network.

Times are seconds since the epoch, so that those of several processes of one machine can be set beside each other; each
process takes them from its monotonic clock, and asks for the date only once.
"""

from dataclasses import dataclass, field, replace

import numpy as np

PIECE = np.dtype(
    [
        ("deadline_s", "f8"),
        ("sent_s", "f8"),
        ("answered_s", "f8"),
        ("lag_s", "f4"),
        ("audio_s", "f4"),
        ("audio_processed_s", "f4"),
        ("completes_chunk", "?"),
        ("is_last", "?"),
    ]
)
"""A `SentPiece` as a row of a table."""

COMPLETE, CUT_SHORT, REFUSED, FAILED = "complete", "cut short", "refused", "failed"
"""How an utterance ended: with its final text, with the test, without a slot (UNAVAILABLE), by any other error."""


@dataclass
class SentPiece:
    """One request."""

    deadline_s: float
    """When its last sample would have been spoken."""
    sent_s: float
    lag_s: float
    """How late the load generator was: from the deadline, or from when it was free to send, to `sent_s`."""
    audio_s: float
    is_last: bool
    answered_s: float = float("inf")
    audio_processed_s: float = 0.0
    """Seconds of the stream that the answer takes in."""
    completes_chunk: bool = False
    """True where the answer takes in more audio than the one before it."""


@dataclass
class Utterance:
    """One recording, streamed once."""

    recording: int
    """Its line in the manifest, from 0."""
    outcome: str
    text: str = ""
    """The final one; empty unless complete."""
    error: str = ""
    """Why it was refused or has failed: the kind of error, a colon, and its words."""
    refused_after_s: float | None = None
    """From the first piece to the refusal."""
    pieces: np.ndarray = field(default_factory=lambda: np.empty(0, PIECE))
    """[n] of PIECE."""

    def to_message(self) -> dict:
        """As values that msgpack carries."""
        return vars(self) | {"pieces": self.pieces.tobytes()}

    @classmethod
    def from_message(cls, message: dict) -> "Utterance":
        """The opposite of `to_message`."""
        utterance = cls(**message)
        return replace(utterance, pieces=np.frombuffer(message["pieces"], PIECE))


def piece_table(pieces: list[SentPiece]) -> np.ndarray:
    """[n] of PIECE."""
    return np.array([tuple(getattr(piece, name) for name in PIECE.names) for piece in pieces], PIECE)


def pieces_between(utterances: list[Utterance], begin_s: float, end_s: float) -> np.ndarray:
    """The pieces whose deadline lies in [begin_s, end_s), of utterances that were neither refused nor failed.

    What those lost is counted as refusals and errors, and not as late once more.
    """
    tables = [utterance.pieces for utterance in utterances if utterance.outcome in (COMPLETE, CUT_SHORT)]
    pieces = np.concatenate(tables) if tables else np.empty(0, PIECE)
    return pieces[(begin_s <= pieces["deadline_s"]) & (pieces["deadline_s"] < end_s)]
