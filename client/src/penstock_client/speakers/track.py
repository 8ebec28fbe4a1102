"""The second way of a stream's audio: to the model `speakers`. Its results wait for their speakers here."""

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock_client.connection import ConnectionOptions, retry_pauses_s
from penstock_client.errors import (
    ClientError,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    ServerDrainingError,
    ServerFullError,
    ServerUnreachableError,
    SpeakersNotServedError,
    StreamClosedError,
    StreamError,
)
from penstock_client.options import SPEAKER_FILE, SpeakerSettings
from penstock_client.protocol import MAX_REQUEST_SAMPLES, SAMPLE_RATE_HZ, Request, Result, Word, with_speakers
from penstock_client.speakers.probabilities import Frames, Probabilities
from penstock_client.transport.signal import AsyncSignal

log = logging.getLogger("penstock_client")
R = TypeVar("R", bound=Result)
Exchange = Callable[[str, AsyncIterator[Request]], AsyncGenerator[tuple[int, Frames], None]]
"""Sends the requests of the sequence with this id, and yields each reply: the number of its first frame, frames [n, K].

Raises ClientError.
"""
_LIVE_SAMPLES, _FILE_SAMPLES = SAMPLE_RATE_HZ * 16 // 100, 10 * SAMPLE_RATE_HZ
"""Less waits for more: two encoder frames; of a file a third of a step."""
_MAX_IN_FLIGHT = 2
"""Meanwhile audio collects, so that a slow server gets fewer, larger requests."""
_MAX_UNANSWERED_SAMPLES = 60 * SAMPLE_RATE_HZ
_KEPT_MS = 30_000
"""Before the first word of a segment that goes on, or the newest result of one without words."""
_MAX_AHEAD_S, _LOOK_S = 2.0, 1.0
"""Live audio is ahead of its time by no more than the first. What waits looks again after the second."""
_GUESSED_MS = 1040
"""Behind the last frame, a word gets the speaker of that frame: the longest look-ahead of a live mode."""
MAX_KEEP_ALIVE_S = 5.0
"""After this time without audio an empty request keeps the sequence open; earlier where the server says so."""
_REPLY_S = 30.0
FILE_REPLY_S = 300.0
"""Time for a reply of the mode of files: a step has half a minute of audio of each file that the server has."""
_UNKNOWN_MODEL = "unknown model"
"""Part of Triton's message for a model that is not served."""


class Waits(NamedTuple):
    """Limits of a final result's wait for its speakers."""

    idle_s: float = 1.0
    """After the newest audio, once all of it is answered: without more audio nothing more is decided."""
    late_s: float = 3.0
    """After the result itself, in a stream whose audio is live."""


LIVE_WAITS, FILE_WAITS = Waits(), Waits(10.0, math.inf)


class SpeakerTrack:
    """One stream at the model `speakers`. For one event loop.

    A failure after `open` is a warning: the words go on without speakers.
    """

    def __init__(
        self,
        exchange: Exchange,
        settings: SpeakerSettings,
        timeout_s: float,
        connection: ConnectionOptions,
        read_keep_alive_s: Callable[[], Awaitable[float]] | None = None,
        is_alive: Callable[[], Awaitable[bool]] | None = None,
        slow_s: float = 0.0,
    ):
        """read_keep_alive_s: what the server needs; called once the stream is open.

        is_alive: asked while a start is unanswered that may take longer than `timeout_s`: up to `slow_s`, or of a file.
        """
        self._is_file, self._keep_alive_s = settings.mode == SPEAKER_FILE, MAX_KEEP_ALIVE_S
        self.settings, self._exchange, self._timeout_s = settings, exchange, timeout_s
        self._connection, self._read_keep_alive_s = connection, read_keep_alive_s
        self._start_s = max(timeout_s, slow_s, FILE_REPLY_S if self._is_file else 0.0)
        self._is_alive = is_alive if self._start_s > timeout_s else None
        self._waits = FILE_WAITS if self._is_file else LIVE_WAITS
        self._least_samples = _FILE_SAMPLES if self._is_file else _LIVE_SAMPLES
        self._probabilities = Probabilities(settings.most)
        self._held: deque[npt.NDArray[np.float32]] = deque()
        self._held_samples = self._samples = 0
        self._in_flight: deque[int] = deque()
        """Samples of each unanswered request."""
        self._newest_audio_s = self._opened_s = time.monotonic()
        self._blocked_s = self._delay_s = 0.0
        """For how long `send` has held back audio in all, and `is_due` the newest result."""
        self._is_opening = False
        self._is_open = self._is_finished = self._is_end_sent = self._is_complete = self._is_pressed = False
        """Finished: no more audio comes. Complete: all of it is decided. Pressed: what is held is sent at once."""
        self.keep_open: Callable[[], Awaitable[None]] = _nothing
        """Called every few seconds while `send` waits: the words' stream must not seem idle. Set by its owner."""
        self._failure: ClientError | None = None
        self._task: asyncio.Task[None] | None = None
        self._to_send, self._changed = AsyncSignal(), AsyncSignal()
        self._words: list[Word] = []
        """The words of the current segment."""

    async def open(self) -> None:
        """Returns when the model has accepted the stream. Raises ClientError, SpeakersNotServedError without a model.

        As audio is, an attempt is repeated where no server is reached, or where it is full, for the time of the
        connection's options.
        """
        self._is_opening = True
        try:
            await self._open()
        finally:
            self._is_opening = False

    async def _open(self) -> None:
        connect, full = (
            retry_pauses_s(each) for each in (self._connection.connect_retry_s, self._connection.wait_for_slot_s)
        )
        self._opened_s = time.monotonic()  # what is recorded meanwhile is live
        while True:
            if self._is_finished:
                raise StreamClosedError("speakers", "the stream is closed")
            self._failure, stream_id = None, uuid.uuid4().hex
            self._task = asyncio.create_task(self._run(stream_id), name=f"penstock {stream_id} speakers")
            is_dead = await self._is_start_lost()
            if (failure := self._failure) is None:
                if self._read_keep_alive_s is not None:
                    self._keep_alive_s = await self._read_keep_alive_s()
                    self._to_send.give()
                return
            pauses: Iterator[float] = iter(())
            if isinstance(failure, ServerUnreachableError):
                pauses = connect
            elif isinstance(failure, ServerFullError | ServerDrainingError):
                pauses = full
            if (pause_s := next(pauses, None)) is None:
                failure.of_speakers = not is_dead
                raise failure
            self._in_flight.clear()
            await self._to_send.wait(pause_s)

    async def _is_start_lost(self) -> bool:
        """Returns when the start is answered or has failed. True where it has because the server is dead."""

        def is_answered() -> bool:
            return self._is_open or self._failure is not None

        while not is_answered():
            await self._changed.wait(math.inf if self._is_alive is None else self._timeout_s / 2)
            is_dead = not is_answered() and self._is_alive is not None and not await self._is_alive()
            if is_dead and not is_answered():
                self.cancel(ConnectionLostError("speakers", "the server does not answer"))
                return True
        return False

    async def send(self, samples: npt.NDArray[np.float32]) -> None:
        """Takes audio [n]. Waits while a minute of it is unanswered; live audio, not of a file, fails then."""
        if self._is_finished or self._is_over or not len(samples):
            return
        self._newest_audio_s = time.monotonic()
        self._held.append(samples)
        self._held_samples += len(samples)
        self._to_send.give()
        self._samples += len(samples)
        kept_s = self._newest_audio_s
        try:
            while self._unanswered_samples > _MAX_UNANSWERED_SAMPLES and not self._is_over:
                if self._is_live() and not self._is_file:
                    self.cancel(ReplyTimeoutError("speakers", "the model speakers is more than a minute behind"))
                    return
                await self._changed.wait(min(_LOOK_S, self._keep_alive_s))
                if time.monotonic() - kept_s >= self._keep_alive_s:
                    kept_s = time.monotonic()
                    await self.keep_open()
        finally:
            self._blocked_s += time.monotonic() - self._newest_audio_s

    def _is_live(self) -> bool:
        """True where the audio has come no faster than in real time, but for the time that it was held back here."""
        elapsed_s = self._newest_audio_s - self._opened_s - self._blocked_s
        return self._samples / SAMPLE_RATE_HZ <= elapsed_s + _MAX_AHEAD_S

    def finish(self) -> None:
        """No more audio follows."""
        self._is_finished = True
        self._to_send.give()

    def cancel(self, error: ClientError | None = None) -> None:
        """Nothing more is needed: the stream is ended on the server. Does not wait.

        error: why the words go on without speakers; None where the stream is closed.
        """
        self._fail(error or StreamClosedError("speakers", "the stream is closed"))
        self.finish()

    async def close(self, wait_s: float = 1.0) -> None:
        """Cancels, and waits until the server has taken the end; after `wait_s` it is sent at once."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=wait_s)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=wait_s)

    def came_s(self, has_waited: bool) -> float:
        """Time of arrival of the result that is read now. has_waited: it was there at once, the one before was held."""
        return time.monotonic() - (self._delay_s if has_waited else 0.0)

    async def placed(self, result: R, came_s: float) -> R:
        """The result with its speakers where it is final: that waits for them."""
        await self.is_due(result, came_s, math.inf)
        return self.place(result)

    async def is_due(self, result: Result, came_s: float, limit_s: float) -> bool:
        """True once `place` has nothing to wait for any more; waits up to `limit_s`.

        Until all is decided that a final result covers, but no longer than `Waits` says.
        """
        deadline_s = time.monotonic() + limit_s
        while (wait_s := self._wait_s(result, came_s)) > 0:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if not self._is_pressed:
                self._is_pressed = True
                self._to_send.give()
            await self._changed.wait(min(wait_s, left_s))
        self._is_pressed = False
        self._delay_s = time.monotonic() - came_s
        return True

    def place(self, result: R) -> R:
        """The next result of the stream; a final one with the speaker of each word of its segment."""
        self._words += result.new_words
        begin_ms = self._words[0].start_ms if self._words else round(1000 * result.audio_processed_s)
        if not result.is_final:
            self._probabilities.forget(begin_ms - _KEPT_MS)
            return result
        words, self._words = self._words, []
        speakers = self._speakers_of(words)
        newest = speakers[len(words) - len(result.new_words) :]
        alternatives = tuple(
            replace(each, words=tuple(with_speakers(each.words, self._speakers_of(each.words))))
            for each in result.alternatives
        )
        self._probabilities.forget(words[-1].start_ms if words else begin_ms - _KEPT_MS)
        return replace(
            result,
            new_words=tuple(with_speakers(result.new_words, newest)),
            word_speakers=speakers,
            alternatives=alternatives,
        )

    def _speakers_of(self, words: Sequence[Word]) -> tuple[int | None, ...]:
        """The speaker of each word; None for those that are not known.

        Those that end behind the last frame are guessed only where all audio is answered, and just before its end.
        """
        speakers, known_ms = self._probabilities.speakers_of(words), self._probabilities.end_ms
        is_behind = self._unanswered_samples or (self._is_finished and not self._is_complete)
        if self._failure is None and not is_behind:
            known_ms += _GUESSED_MS
        return tuple(who if word.end_ms <= known_ms else None for who, word in zip(speakers, words, strict=True))

    def _wait_s(self, result: Result, came_s: float) -> float:
        """Seconds that the result may still wait; 0 where there is nothing to wait for."""
        words = result.new_words or tuple(self._words[-1:])
        if not result.is_final or not words or self._is_over or self._probabilities.end_ms >= words[-1].end_ms:
            return 0.0
        now_s = time.monotonic()
        late_s = came_s + self._waits.late_s - now_s if self._is_live() else math.inf
        if self._unanswered_samples or self._is_finished:
            return max(0.0, late_s)
        return max(0.0, min(late_s, self._newest_audio_s + self._waits.idle_s - now_s))

    @property
    def is_ended(self) -> bool:
        """True once it has nothing more to do."""
        if self._is_opening:
            return False
        return self._is_finished if self._task is None else self._task.done()

    @property
    def _is_over(self) -> bool:
        return self._is_complete or self._failure is not None

    @property
    def _unanswered_samples(self) -> int:
        return self._held_samples + sum(self._in_flight)

    async def _run(self, stream_id: str) -> None:
        replies = self._exchange(stream_id, self._requests())
        try:
            while True:
                limit_s = FILE_REPLY_S if self._is_file else MAX_KEEP_ALIVE_S + _REPLY_S
                limit_s = limit_s if self._is_open else self._start_s
                try:
                    first_frame, frames = await asyncio.wait_for(anext(replies), limit_s)
                except asyncio.TimeoutError:
                    raise ReplyTimeoutError(stream_id, f"no reply of the model speakers for {limit_s:g} s") from None
                except StopAsyncIteration:
                    break
                self._note_reply(stream_id, first_frame, frames)
            if not self._is_complete:
                raise ConnectionLostError(stream_id, "the server ended the stream of the model speakers")
        except ClientError as error:
            self._fail(error)
        finally:
            self._fail(ConnectionLostError(stream_id, "the stream of the model speakers is cut off"))
            await replies.aclose()

    def _note_reply(self, stream_id: str, first_frame: int, frames: Frames) -> None:
        if not self._in_flight:
            raise ProtocolError(stream_id, "the model speakers sent a reply without a request")
        try:
            self._probabilities.add(first_frame, frames)
        except ValueError as error:
            raise ProtocolError(stream_id, f"the reply of the model speakers cannot be read: {error}") from error
        self._in_flight.popleft()
        self._is_open = True
        self._is_complete = self._is_end_sent and not self._in_flight
        self._changed.give()
        self._to_send.give()

    async def _requests(self) -> AsyncIterator[Request]:
        yield self._request(is_start=True)
        while not self._is_end_sent:
            await self._until_due()
            yield self._request(is_start=False)

    async def _until_due(self) -> None:
        """Returns when a request is due."""
        begin_s = time.monotonic()
        while True:
            least = 1 if self._is_pressed else self._least_samples
            has_room = self._is_open and len(self._in_flight) < _MAX_IN_FLIGHT
            if self._is_finished and (has_room or self._failure is not None):  # an end without audio needs no room
                return
            if has_room and self._held_samples >= least:
                return
            left_s = begin_s + self._keep_alive_s - time.monotonic()
            if left_s <= 0 and not self._in_flight:
                return
            await self._to_send.wait(left_s if left_s > 0 else math.inf)

    def _request(self, is_start: bool) -> Request:
        """The next request: all that is held, up to the most that one may have."""
        parts: list[npt.NDArray[np.float32]] = []
        room = 0 if is_start else MAX_REQUEST_SAMPLES
        while room and self._held:
            part = self._held.popleft()
            if len(part) > room:
                self._held.appendleft(part[room:])
            parts.append(part[:room])
            room -= len(parts[-1])
        audio = np.concatenate(parts).astype("<f4").tobytes() if parts else b""
        is_end = not is_start and self._is_finished and not self._held
        parameters = {"speaker_mode": self.settings.mode} if is_start else {}
        request = Request(audio, is_start, is_end, parameters)
        self._held_samples -= request.samples
        self._in_flight.append(request.samples)
        self._is_end_sent = is_end
        return request

    def _fail(self, error: ClientError) -> None:
        if self._is_over:
            return
        if not self._is_open:
            if error.code == StreamError.code and _UNKNOWN_MODEL in error.text.lower():
                error = SpeakersNotServedError()
        elif not isinstance(error, StreamClosedError):
            log.warning("%s; the words go on without speakers", error)
        self._failure = error
        self._held.clear()
        self._held_samples = 0
        self._changed.give()


async def _nothing() -> None:
    pass
