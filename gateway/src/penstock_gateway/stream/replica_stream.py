"""A live stream on one replica: audio to the server, its results as events, and the limits of a stream's life."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from penstock_client import BatchedStream, ClientError, StreamClosedError, StreamError, StreamResult
from penstock_client.audio.monitors import SpeechMonitor
from penstock_client.audio.pcm import Remark
from penstock_client.audio.tracks import Samples
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import MAX_AGE_S, MAX_FINISH_S, MAX_IDLE_S, MAX_SILENT_S, RETRY_AFTER_S
from penstock_gateway.stream.admission import AudioHold
from penstock_gateway.stream.events import Event, Final, Segments
from penstock_gateway.stream.metrics import StreamReport

log = logging.getLogger(__name__)
_CODES: Mapping[str, ErrorCode] = {
    "STREAM_LIMIT": ErrorCode.STREAMS_EXHAUSTED,
    "PHRASE_MEMORY_FULL": ErrorCode.STREAMS_EXHAUSTED,
    "AUDIO_MEMORY_FULL": ErrorCode.STREAMS_EXHAUSTED,
    "SPEAKERS_NOT_SERVED": ErrorCode.SPEAKERS_NOT_SERVED,
    "AUDIO_INVALID": ErrorCode.AUDIO_INVALID,
    "AUDIO_TOO_LONG": ErrorCode.TOO_LARGE,
    "OPTION_INVALID": ErrorCode.FIELD_INVALID,
    "PHRASES_INVALID": ErrorCode.FIELD_INVALID,
}
"""By the code of the client's error. Every other one means that the replica lost the stream."""
_STREAM = re.compile(r"^stream \S+( of client '[^']*')?: ")
"""The server's name of a stream, which means nothing to a client."""
_BY_CLIENT = (
    ErrorCode.AUDIO_INVALID,
    ErrorCode.FIELD_INVALID,
    ErrorCode.SPEAKERS_NOT_SERVED,
    ErrorCode.TOO_LARGE,
)
LATE_S = 1.0
"""Seconds beyond a pause in the audio without a message where its segment ends."""
_NO_SAMPLES = np.zeros(0, np.float32)


class OnlyOtherModelsError(StreamError):
    """A stream's replica is lost, and those that answer serve another model, with other settings or another version."""

    def __init__(self) -> None:
        super().__init__("", "the server of the stream failed, and the others differ in model, settings or version")


def gateway_error(error: ClientError) -> GatewayError:
    """The error of the gateway for that of a stream on a replica."""
    code = _CODES.get(error.code, ErrorCode.STREAM_LOST)
    if isinstance(error, OnlyOtherModelsError):
        return GatewayError(code, error.message, retry_after_s=RETRY_AFTER_S)
    if code is ErrorCode.STREAM_LOST:  # the cause may contain the address of a server
        log.warning("a stream is lost: %s", error)
        return GatewayError(code, "the server of the stream failed or did not answer", retry_after_s=RETRY_AFTER_S)
    message = error.message if isinstance(error, StreamError) else error.text
    message = _STREAM.sub("", message)
    retry_after_s = None if code in _BY_CLIENT else RETRY_AFTER_S
    return GatewayError(code, message, retry_after_s=retry_after_s)


class ReplicaStream:
    """The stream as protocols use it: one task pushes, one reads events. Independent of sockets and protocols.

    Every method raises GatewayError once the stream has failed. `on_end` is called once, when the server has no work
    for it any more.
    """

    def __init__(
        self,
        upstream: BatchedStream,
        report: StreamReport,
        on_end: Callable[["ReplicaStream"], None],
        segments: Segments | None = None,
        file_hold: AudioHold | None = None,
        idle_s: float = MAX_SILENT_S,
        parks: bool = False,
        pause_s: float = 0.0,
    ):
        """file_hold: of a file for an offline model, which holds all that is pushed.

        parks: after `idle_s` without audio its text ends, and its slot is given back until audio comes. Else it ends.
        pause_s: silence that ends a segment; 0: only the client ends it.
        """
        self._turn_s = pause_s and pause_s + LATE_S
        self._has_audio = False
        """Since the last end of a segment by the client or by missing messages."""
        self._idle_s, self._parks = idle_s, parks and upstream.can_park
        self._upstream = upstream
        self._file_hold = file_hold
        self._segments = segments or Segments()
        self._report = report
        self._monitor = SpeechMonitor(report.sample_rate_hz)
        self.start_s = 0.0
        """The time of the first sample in its recording, for remarks."""
        self._remarks: dict[tuple[str, float], Remark] = {}
        self._on_end = on_end
        self._failure: GatewayError | None = None
        self._stopped: GatewayError | None = None
        self._over = asyncio.Event()
        self._started_s = self._last_audio_s = self._last_kept_s = time.monotonic()
        self._is_finished = self._is_cancelled = False
        self._pushes = 0
        """Calls that wait for the server, which is no silence."""
        self.last_heard_s = self._started_s
        """Time of the client's last message but for audio, as a ping of its socket: it may be silent for longer."""

    async def push(self, samples: Samples) -> None:
        """Sends audio [n], float32 at the model's rate. Waits while more than 2 s are unanswered.

        No samples only show that the client is not silent. Of a file that has begun they do not: it holds memory.
        """
        if not len(samples) and self._file_hold is not None and self._file_hold.samples:
            return
        if not len(samples):
            self._last_audio_s = time.monotonic()
            return
        self._hold(len(samples))
        self._has_audio = True
        self._report.pushed(len(samples))
        self._monitor.add(samples)
        try:
            with self._pushing():
                await self._upstream.push(samples)
        except ClientError as error:
            raise await self._failed(error) from error

    @contextmanager
    def _pushing(self) -> Iterator[None]:
        """Waiting for the server is not silence."""
        self._pushes += 1
        try:
            yield
        finally:
            self._pushes -= 1
            self._last_audio_s = time.monotonic()

    def _hold(self, samples: int) -> None:
        """Fails the stream where its key has no memory left for these samples."""
        if self._file_hold is None or self._over.is_set():
            return
        try:
            self._file_hold.add(samples)
        except GatewayError as error:
            self.fail(error)
            raise

    async def end_segment(self) -> None:
        """Ends the segment after the audio pushed so far. A Final with `forced` answers it, also for silence."""
        self._report.ending()
        self._has_audio = False
        try:
            with self._pushing():
                await self._upstream.end_segment()
        except ClientError as error:
            raise await self._failed(error) from error

    async def change(self, options: Mapping[str, Any], forced: bool = False) -> None:
        """Ends the segment and goes on with these options of the server; forced: as `end_segment`, else softly."""
        self._report.ending()
        self._has_audio = False
        try:
            with self._pushing():
                if forced:
                    await self._upstream.end_segment(options=options)
                else:
                    await self._upstream.change(options)
        except ClientError as error:
            raise await self._failed(error) from error
        if "endpoint_silence_ms" in options:
            self._turn_s = options["endpoint_silence_ms"] / 1000 + LATE_S

    async def finish(self) -> None:
        """No more audio follows. `events` ends after the Final with `is_last`."""
        self._is_finished = True
        self._report.ending()
        try:
            await self._upstream.finish()
        except ClientError as error:
            raise await self._failed(error) from error

    async def stop(self, error: GatewayError) -> None:
        """Takes no more audio: `events` brings the text of what was pushed and then raises the error.

        Does nothing to a stream that is finished. Calls to push wait until then.
        """
        if not self._over.is_set() and not self._is_finished:
            self._stopped, self._is_finished = error, True
            self._report.ending()
            with suppress(ClientError):  # it is lost: the reader of its events gets the reason
                await self._upstream.finish()

    async def cancel(self) -> None:
        """The client vanished: frees the stream on the server; no more events. Also after `finish`; never raises."""
        self._is_cancelled = True
        self._upstream.cancel()
        self._end("cancelled")

    async def events(self) -> AsyncIterator[Event]:
        """Partials and Finals in order. Raises GatewayError where the stream is lost."""
        with self._reads():
            async for result in self._upstream:
                if (event := self._event(result)) is not None:
                    yield event

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on the audio and its text."""
        return list(self._remarks.values())

    def note(self, remarks: Iterable[Remark]) -> None:
        """Takes all remarks on the audio so far; reports those that are new."""
        for remark in remarks:
            key = remark.code, remark.start_s
            if key not in self._remarks:
                self._report.remarked(remark)
            self._remarks[key] = remark

    def _event(self, result: StreamResult) -> Event | None:
        """The reported event of a result; None without a change."""
        self._monitor.note(result.new_words, result.audio_processed_s, result.text, result.is_final)
        self.note(remark._replace(start_s=self.start_s + remark.start_s) for remark in self._monitor.remarks)
        event = self._segments.add(result)
        if isinstance(event, Final):
            self._report.final(event)
        elif event is not None:
            self._report.partial(result.round_trip_s)
        return event

    @contextmanager
    def _reads(self) -> Iterator[None]:
        """Around reading to the stream's end."""
        try:
            yield
            if self._stopped is not None:
                raise self._fail_as(self._stopped)
            self._end("finished")
        except StreamClosedError as error:
            if self._failure is not None:
                raise self._failure from None
            if not self._is_cancelled:
                raise self._fail(error) from error
        except ClientError as error:
            raise self._fail(error) from error

    def note_stall(self, seconds: float) -> None:
        """Notes that this process was stopped: its client was not silent, its audio waits to be read."""
        self._last_audio_s += seconds

    async def watch(self, now_s: float, keep_alive_s: float) -> None:
        """Called regularly: keeps the stream open on the server, and finishes one that is too old or silent.

        With ends in pauses a segment ends, too, where no message comes: a client that is mute may send no silence.
        """
        if self._over.is_set():
            return
        if self._pushes:
            self._last_audio_s = now_s
        silent_s = now_s - self._last_audio_s
        is_gone = silent_s > self._idle_s
        if self._parks:
            is_gone = now_s - max(self._last_audio_s, self.last_heard_s) > MAX_IDLE_S
        if now_s - self._started_s > MAX_AGE_S:
            error = GatewayError(ErrorCode.STREAM_TOO_OLD, f"the stream is {MAX_AGE_S / 3600:g} hours old")
            await self.stop(error)
            if now_s - self._started_s > MAX_AGE_S + MAX_FINISH_S:
                self.fail(error)
        elif self._is_finished:
            return
        elif is_gone:
            await self.stop(GatewayError(ErrorCode.STREAM_IDLE, f"no audio arrived for {silent_s:.0f} s"))
        elif self._parks and silent_s > self._idle_s:
            self._upstream.park()
        elif self._turn_s and self._has_audio and silent_s > self._turn_s:
            self._has_audio = not self._upstream.end_softly()
        elif now_s - self._last_kept_s > keep_alive_s:  # also where samples arrive, which may complete no chunk
            self._last_kept_s = now_s
            await self._keep_open()

    async def _keep_open(self) -> None:
        """Audio on its way does so, too: a push after it might wait, and all other streams with it."""
        if self._upstream.is_answered:
            try:
                await self._upstream.push(_NO_SAMPLES)
            except ClientError as error:
                self._fail(error)

    def fail(self, error: GatewayError) -> None:
        """Ends the stream with an error: `events` and the next `push` raise it."""
        if not self._over.is_set():
            self._failure = error
            self._upstream.cancel()
            self._end(error.code.name)

    async def _failed(self, error: ClientError) -> GatewayError:
        """The error of a call that failed. In a stream that is stopped, results come first."""
        if self._stopped is not None:
            await self._over.wait()
        return self._fail(error)

    def _fail(self, error: ClientError) -> GatewayError:
        return self._fail_as(self._failure or gateway_error(error))

    def _fail_as(self, error: GatewayError) -> GatewayError:
        """The stream's error; the first one counts."""
        self._failure = self._failure or error
        self._end(self._failure.code.name)
        return self._failure

    def _end(self, reason: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._report.ended(reason)
            self._on_end(self)
