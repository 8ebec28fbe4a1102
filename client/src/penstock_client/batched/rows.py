"""Rows between a stream and its link, and the stream on the server that it moves to."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from penstock_client.alignment import Samples
from penstock_client.batched.wire import END, FINALIZE, START, Row
from penstock_client.errors import ClientError, ProtocolError, StreamClosedError, StreamError, StreamNotOpenError
from penstock_client.protocol import Parameter, Result
from penstock_client.replies import stream_error
from penstock_client.transport.async_channel import AsyncSignal
from penstock_client.transport.resuming import RESUMABLE

MOVABLE = frozenset({*RESUMABLE, StreamError.code, ProtocolError.code})
"""The codes of errors after which a stream may succeed on another server: also Triton's own ones, and replies that
cannot be read."""
NO_SAMPLES: Samples = np.empty(0, np.int16)


@dataclass(frozen=True, slots=True)
class Part:
    """A row of a stream, wherever it is sent to."""

    audio: Samples
    flags: int
    end_samples: int
    """Samples of the stream up to its end."""
    number: int
    """Rows of the stream before it; -1 for one that the caller did not make."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """With START: the stream's options."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.audio)

    @property
    def is_start(self) -> bool:
        """True for the stream's first row."""
        return bool(self.flags & START)

    @property
    def is_end(self) -> bool:
        """True for the stream's last row."""
        return bool(self.flags & END)

    @property
    def is_final(self) -> bool:
        """True where a segment ends."""
        return bool(self.flags & (END | FINALIZE))

    def again(self, samples: int, parameters: Mapping[str, Parameter] | None = None, ends: bool = True) -> "Part":
        """With its last samples only: as a start with these parameters, or not as a start; where not `ends`, no end."""
        flags = self.flags & ~START if parameters is None else self.flags | START
        flags &= -1 if ends else ~(END | FINALIZE)
        audio = self.audio[len(self.audio) - samples :]
        return replace(self, audio=audio, flags=flags, parameters=parameters or {})

    def row(self, stream_number: int) -> Row:
        """As a row of the stream with this number on its link."""
        options = json.dumps(dict(self.parameters)) if self.is_start else None
        return Row(stream_number, self.audio, self.flags, options)


class Pushed(NamedTuple):
    """A row on its way to the server and back."""

    stream: "Receiver"
    row: Row
    end_samples: int
    """Samples of the stream up to the row's end."""
    pushed_s: float
    """When its last sample was pushed, by the link's clock."""
    number: int = -1
    """As that of its part."""
    visit: int = 0
    """Servers of the stream before this one."""
    polled: int = 0
    """The flags of the row before, where this one asks for more of its answer."""

    @property
    def flags(self) -> int:
        """Those of the row that is answered."""
        return self.polled or self.row.flags

    def poll(self) -> "Pushed":
        """Asks for more of the answer to this row, which ends a segment; counted and timed as this one."""
        return self._replace(row=Row(self.row.number, NO_SAMPLES), polled=self.flags & (END | FINALIZE))


class Receiver(Protocol):
    """A stream, as a link needs it."""

    stream_id: int

    @property
    def has_words(self) -> bool:
        """True if words of its segment are told: it is moved before others."""

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected."""

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """The row's request was rejected whole: the server may hold the stream open."""

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Its row or its server is lost; `is_open`: its end has to be sent."""

    def cancel(self) -> None:
        """The client is closed."""


class RowSender(Protocol):
    """The link, as a stream needs it."""

    client_id: str
    """Names the link to the server."""
    is_lost: bool
    """True once its streams have failed: it takes no more."""

    def now_s(self) -> float:
        """The clock of all times."""

    def next_number(self) -> int:
        """A number for a new stream of this link."""

    def add(self, stream: Receiver) -> None:
        """The stream fails if the server is lost."""

    def enqueue(self, pushed: Pushed) -> None:
        """Sends the row with the next request."""

    def forget(self, stream: Receiver) -> int:
        """Drops the stream and its unsent rows; returns all flags of these."""


class Arrival:
    """A stream on the server that another one moves to, before anything is taken from the one that it leaves."""

    has_words = True

    def __init__(self, link: RowSender, parameters: Mapping[str, Parameter], polls: bool = False):
        """polls: of an offline model."""
        self.stream_id = link.next_number()
        self._link = link
        self._polls = polls
        self._answers: list[Sequence[Result]] = []
        self._sent_samples = self._answered_samples = 0
        self._failure: ClientError | None = None
        self._is_open = True
        """The server may hold it open."""
        self._is_cancelled = False
        self._changed = AsyncSignal()
        link.add(self)
        self._send(Part(NO_SAMPLES, START, 0, -1, parameters))

    async def catch_up(self, parts: Sequence[Part], max_in_flight_samples: int) -> list[Sequence[Result]]:
        """Sends these parts once the server has accepted the stream; returns the answers to them. Raises ClientError.

        max_in_flight_samples: on their way at a time.
        """
        await self._wait_until(lambda: bool(self._answers))
        for part in parts:
            self._send(part)
            await self._wait_until(lambda: self._sent_samples - self._answered_samples <= max_in_flight_samples)
        await self._wait_until(lambda: len(self._answers) > len(parts))
        return self._answers[1:]

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row. Called by the link."""
        if error is not None:
            failure = stream_error(self.stream_id, error)
            self.fail(failure, is_open=not (pushed.flags & START or isinstance(failure, StreamNotOpenError)))
            return
        self._answered_samples += len(pushed.row.samples)
        self._answers.append(results)
        self._changed.give()

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """Takes the rejection of a row's request. Called by the link."""
        self.fail(error, is_open=True)

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """The stream is lost there."""
        if self._failure is None:
            self._failure, self._is_open = error, bool(is_open)
            self._changed.give()

    def cancel(self) -> None:
        """Ends the stream on the server, if it may be open there."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        unsent = self._link.forget(self)
        if self._is_open and not unsent & START:
            for _ in range(2 if self._polls and self._sent_samples else 1):  # as `BatchedStream` leaves a server
                self._link.enqueue(Pushed(self, Row(self.stream_id, NO_SAMPLES, END), 0, self._link.now_s()))
        self.fail(StreamClosedError(self.stream_id, "the stream was closed"))

    def _send(self, part: Part) -> None:
        self._sent_samples += part.samples
        self._link.enqueue(Pushed(self, part.row(self.stream_id), part.end_samples, self._link.now_s()))

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        while self._failure is None and not is_met():
            await self._changed.wait(math.inf)
        if self._failure is not None:
            raise self._failure
