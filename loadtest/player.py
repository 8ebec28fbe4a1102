"""Streams one recording to a server in real time and records what happens to each request.

The recording comes in parts, as from a microphone. A part is sent at the moment at which its last sample would have
been spoken. These deadlines are absolute: a late part does not delay the next one. The stream makes requests of the
parts: a part that completes no chunk may wait for the ones after it.

Times are seconds since the epoch (`now_s`), comparable between the processes of one machine."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock_client import SAMPLE_RATE_HZ, AsyncStream, ClientError, Result, ServerFullError

if TYPE_CHECKING:
    from loadtest.gateway_clients import GatewayVoice  # needs the wheel of the gateway

    PlayedStream = AsyncStream | GatewayVoice

REQUEST = np.dtype(
    [(name, "f8") for name in ("deadline_s", "sent_s", "answered_s")]
    + [(name, "f4") for name in ("lag_s", "audio_s", "audio_processed_s")]
    + [(name, "?") for name in ("completes_chunk", "is_last")]
)
"""A `SentRequest` as a row of a table."""

COMPLETE, CUT_SHORT, REJECTED, FAILED = "complete", "cut short", "rejected", "failed"
"""Ends of an utterance: with its final text, with the test, without a slot (STREAM_LIMIT), by any other error."""
ANSWER_WAIT_S = 5.0
"""Limit of the wait for the last answers; far beyond any that would pass."""

EPOCH_S = time.time() - time.monotonic()
"""From the monotonic clock to the epoch, read once: setting the clock moves no deadline."""


@dataclass
class SentRequest:
    """One request of a stream."""

    deadline_s: float
    """Time when the last sample would have been spoken."""
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
    """Line in the manifest, from 0."""
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

    @property
    def last_sent_s(self) -> float:
        """Time when the last request was sent; without one, as where the server was not reached, `opened_s`."""
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


class Answer(NamedTuple):
    """The server has answered a request: the part of a `Result` that a player reads."""

    round_trip_s: float
    audio_processed_s: float
    """Audio of the stream up to the request's end."""


def now_s() -> float:
    """Seconds since the epoch, from the monotonic clock."""
    return EPOCH_S + time.monotonic()


class Player:
    """Plays one recording. `is_stopping`: True once the test or the user ends; `sleep` then returns."""

    def __init__(
        self,
        samples: np.ndarray,
        part_samples: int,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = now_s,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ):
        self._samples = samples
        self._part_samples = part_samples
        self._is_stopping = is_stopping
        self._clock = clock
        self._sleep = sleep
        self._sent: list[SentRequest] = []
        self._unanswered: deque[SentRequest] = deque()
        self._audio_processed_s = 0.0

    async def play(self, open_stream: "Callable[[], PlayedStream]", recording: int, start_s: float) -> Utterance:
        """Plays from `start_s` on and returns after the last answer, or without it. Errors end up in the record."""
        opened_s = self._clock()
        try:
            async with open_stream() as stream:
                outcome = await self._stream(stream, start_s)
                text = stream.transcript.text if outcome == COMPLETE else ""
                return Utterance(recording, outcome, text, requests=request_table(self._sent), opened_s=opened_s)
        except ServerFullError as error:  # of a batched stream maybe before a part made a request
            after_s = self._clock() - (self._sent[0].sent_s if self._sent else opened_s)
            return Utterance(recording, REJECTED, "", str(error), after_s, request_table(self._sent), opened_s)
        except ClientError as error:
            return Utterance(recording, FAILED, "", str(error), None, request_table(self._sent), opened_s)

    async def _stream(self, stream: "PlayedStream", start_s: float) -> str:
        free_s = start_s
        for begin in range(0, self._samples.size, self._part_samples):
            part = self._samples[begin : begin + self._part_samples]
            deadline_s = start_s + (begin + part.size) / SAMPLE_RATE_HZ
            await self._wait_until(deadline_s, stream)
            if self._is_stopping():
                return await self._cut_short(stream)
            is_last = begin + part.size == self._samples.size
            sent_s = self._clock()
            lag_s = sent_s - max(deadline_s, free_s)
            waiting = stream.held_samples + part.size
            request = SentRequest(deadline_s, sent_s, lag_s, waiting / SAMPLE_RATE_HZ, is_last)
            self._sent.append(request)
            self._unanswered.append(request)
            await (stream.finish if is_last else stream.send)(part)
            if stream.held_samples == waiting:  # no request was made of it yet
                self._sent.pop()
                self._unanswered.pop()
            request.audio_s -= stream.held_samples / SAMPLE_RATE_HZ
            free_s = self._clock()  # sending blocks where the server is a minute of audio behind
            self._record(await stream.poll())
        await self._await_answers(stream)
        return COMPLETE if stream.transcript.is_complete else CUT_SHORT

    async def _wait_until(self, deadline_s: float, stream: "PlayedStream") -> None:
        """Sleeps. After the first request it polls for the answer, so that a rejection is timed when it arrives."""
        while (wait_s := deadline_s - self._clock()) > 0 and not self._is_stopping():
            if len(self._sent) == len(self._unanswered) == 1:
                self._record(await stream.poll(wait_s))
            else:
                await self._sleep(wait_s)

    async def _cut_short(self, stream: "PlayedStream") -> str:
        """Ends the stream. The request that does so is not one of the recording's and is not recorded."""
        if self._sent:
            await stream.finish()
            await self._await_answers(stream)
        return CUT_SHORT

    async def _await_answers(self, stream: "PlayedStream") -> None:
        give_up_s = self._clock() + ANSWER_WAIT_S
        while not stream.transcript.is_complete and (wait_s := give_up_s - self._clock()) > 0:
            self._record(await stream.poll(wait_s))

    def _record(self, results: Sequence[Result | Answer]) -> None:
        """Each result answers the oldest unanswered request, and holds its own round-trip time."""
        for result in results:
            if not self._unanswered:
                return  # the answer to the end of an utterance that was cut short
            request = self._unanswered.popleft()
            request.answered_s = request.sent_s + result.round_trip_s
            request.audio_processed_s = result.audio_processed_s
            request.completes_chunk = result.audio_processed_s > self._audio_processed_s
            self._audio_processed_s = result.audio_processed_s
