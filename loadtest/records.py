"""Records of one utterance's stream: each request with its times, and how the stream ended.

Times are seconds since the epoch (`player.now_s`), comparable between the processes of one machine.
"""

from dataclasses import dataclass, field, replace

import numpy as np

REQUEST = np.dtype(
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
"""A `SentRequest` as a row of a table."""

COMPLETE, CUT_SHORT, REJECTED, FAILED = "complete", "cut short", "rejected", "failed"
"""How an utterance ended: with its final text, with the test, without a slot (STREAM_LIMIT), by any other error."""


@dataclass
class SentRequest:
    """One request of a stream."""

    deadline_s: float
    """When its last sample would have been spoken."""
    sent_s: float
    lag_s: float
    """Lateness of the load generator: from the deadline, or from when the stream could send again, to `sent_s`."""
    audio_s: float
    is_last: bool
    answered_s: float = float("inf")
    audio_processed_s: float = 0.0
    """Seconds of the stream that the answer covers."""
    completes_chunk: bool = False
    """True where the answer covers more audio than the one before it."""


@dataclass
class Utterance:
    """One recording, streamed once."""

    recording: int
    """Its line in the manifest, from 0."""
    outcome: str
    text: str = ""
    """The final one; empty unless complete."""
    error: str = ""
    """Why it was rejected or failed: the kind of error, a colon, and its message."""
    rejected_after_s: float | None = None
    """From the first request, without one from `opened_s`, to the rejection."""
    requests: np.ndarray = field(default_factory=lambda: np.empty(0, REQUEST))
    """[n] of REQUEST."""
    opened_s: float = 0.0
    """When its stream was opened."""

    @property
    def last_sent_s(self) -> float:
        """When its last request was sent; without one, as where the server was not reached, `opened_s`."""
        return float(self.requests["sent_s"][-1]) if self.requests.size else self.opened_s

    def to_message(self) -> dict:
        """Returns values that msgpack can carry."""
        return vars(self) | {"requests": self.requests.tobytes()}

    @classmethod
    def from_message(cls, message: dict) -> "Utterance":
        """Inverts `to_message`."""
        return replace(cls(**message), requests=np.frombuffer(message["requests"], REQUEST))


def request_table(requests: list[SentRequest]) -> np.ndarray:
    """Returns the requests as a table, [n] of REQUEST."""
    return np.array([tuple(getattr(request, name) for name in REQUEST.names) for request in requests], REQUEST)


def requests_between(utterances: list[Utterance], begin_s: float, end_s: float) -> np.ndarray:
    """Returns the requests with a deadline in [begin_s, end_s), without those of rejected and failed utterances.

    The latter count as rejections and errors, and not as late in addition.
    """
    tables = [utterance.requests for utterance in utterances if utterance.outcome in (COMPLETE, CUT_SHORT)]
    requests = np.concatenate(tables) if tables else np.empty(0, REQUEST)
    return requests[(begin_s <= requests["deadline_s"]) & (requests["deadline_s"] < end_s)]
