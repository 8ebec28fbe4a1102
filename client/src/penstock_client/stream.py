"""One audio stream of a `Client` or `AsyncClient`: send samples, receive results; its transcript grows."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from penstock_client.batched.blocking import Arrivals, EventLoopThread
from penstock_client.batched.engine import EngineStream, Request
from penstock_client.batched.rows import END, FINALIZE
from penstock_common.errors import ClientError, StreamClosedError
from penstock_common.options import changes_of
from penstock_common.results import Result
from penstock_common.samples import as_samples
from penstock_common.transcript import Transcript


class StreamBase:
    """The part of a stream without I/O, shared by `Stream` and `AsyncStream`."""

    def __init__(self, engine: EngineStream):
        self._engine = engine
        self.transcript = Transcript()
        """Accumulates the results that were received."""
        self.start_ms = 0
        """The time of the first sample, which counts in the times of all words."""
        self._is_finished = self._is_closed = False

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the first audio."""
        return self._engine.name

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that complete no chunk, and wait in the client for those that do."""
        return self._engine.held_samples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or 'not yet opened'}>"

    def _request(self, samples: npt.ArrayLike, flags: int, options: Mapping[str, Any] | None) -> Request:
        self._check_open()
        if self._is_finished:
            raise StreamClosedError(self._engine.stream_id, "the stream is finished and accepts no more audio")
        request = Request(as_samples(samples).copy(), flags, changes_of(options))
        self._is_finished = bool(flags & END)
        return request

    def _add(self, result: Result, is_complete: bool) -> Result:
        """Adds a result to the transcript; `is_complete` marks the stream's last."""
        if self.start_ms:
            result = result.shifted(self.start_ms)
        self.transcript.add(result)
        if is_complete:
            self.transcript.is_complete = True
            self.transcript.latency_s = result.round_trip_s
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamClosedError(self._engine.stream_id, "the stream is closed")


class Stream(StreamBase):
    """A stream opened by a `Client`. Use it as a context manager, so that it is always closed.

    One thread may send while another iterates. A single thread calls `poll` between sends and iterates after `finish`.
    """

    def __init__(self, engine: EngineStream, thread: EventLoopThread, owner: object):
        super().__init__(engine)
        self._thread = thread
        self._owner = owner  # referenced, so that a client is not closed while one of its streams is used
        self._arrivals = Arrivals()
        self._is_cancelled = False
        # One that nothing refers to any more is ended on the server.
        self._abandon = weakref.finalize(self, _abandon, thread, engine)
        self._abandon.atexit = False  # the client closes its streams then

    def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Samples wait in the client until they complete a chunk of the server's model, if the client aligns; no samples
        make a request at once. Returns before the reply, but blocks while two minutes of audio are unanswered. Raises
        ClientError.
        """
        self._send(samples, 0)

    def finalize(self, samples: npt.ArrayLike = (), options: Mapping[str, Any] | None = None) -> None:
        """Ends the current segment, after these samples if given; the stream continues with the next segment.

        The reply is the segment's final result (`is_final`). Times keep counting from the stream's start. options:
        those of `options.CHANGEABLE` that change from here on; ValueError for others.
        """
        self._send(samples, FINALIZE, options)

    def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream, after these samples if given. Iterate for the remaining results."""
        self._send(samples, END)

    def poll(self, wait_s: float = 0.0) -> list[Result]:
        """The results that have arrived; waits up to `wait_s` for the first. Raises ClientError."""
        results: list[Result] = []
        try:
            while (result := self._receive(0.0 if results else wait_s)) is not None:
                results.append(result)
        except ClientError:
            if not results:
                raise  # else the next call raises it
        return results

    def __iter__(self) -> Iterator[Result]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while (result := self._receive(None)) is not None:
            yield result

    def cancel(self) -> None:
        """Ends the stream without its remaining results and frees its slot on the server. Does not wait.

        Drops audio that has not been sent. Calls to send or iterate raise StreamClosedError, also in other threads.
        """
        if not self._is_closed and self._thread.is_running:
            self._is_cancelled = True  # the failure that follows is all that is left to wait for
            self._thread.post(self._cancel)

    def close(self) -> None:
        """Frees the stream. An unfinished stream is also ended on the server, which may take a second."""
        if not self._is_closed:
            self._is_closed = True
            self._abandon.detach()
            if self._thread.is_running:
                self._thread.finish(self._engine.close())

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, samples: npt.ArrayLike, flags: int, options: Mapping[str, Any] | None = None) -> None:
        request = self._request(samples, flags, options)
        self._check_process()
        self._thread.call(self._send_in_loop(request))

    async def _send_in_loop(self, request: Request) -> None:
        self._arrivals.begin(self._engine)
        await self._engine.send(request)

    def _cancel(self) -> None:
        self._engine.cancel()
        self._arrivals.begin(self._engine)

    def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        self._check_process()
        arrival = self._arrivals.next(None if self._is_cancelled else wait_s)
        return None if arrival is None else self._add(*arrival)

    def _check_process(self) -> None:
        if not self._thread.is_running:
            raise StreamClosedError(self._engine.stream_id, "the stream was opened before this process was forked")


def _abandon(thread: EventLoopThread, engine: EngineStream) -> None:
    if thread.is_running:
        thread.post(lambda: asyncio.ensure_future(engine.close()))


class AsyncStream(StreamBase):
    """A stream opened by an `AsyncClient`. Use it as an async context manager, so that it is always closed.

    One task may send while another iterates. A single task calls `poll` between sends and iterates after `finish`.
    """

    async def send(self, samples: npt.ArrayLike) -> None:
        """Sends audio [n] as `Stream.send`; waits where that blocks."""
        await self._send(samples, 0)

    async def finalize(self, samples: npt.ArrayLike = (), options: Mapping[str, Any] | None = None) -> None:
        """Ends the current segment as `Stream.finalize`."""
        await self._send(samples, FINALIZE, options)

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream, after these samples if given. Iterate for the remaining results."""
        await self._send(samples, END)

    async def poll(self, wait_s: float = 0.0) -> list[Result]:
        """The results that have arrived; waits up to `wait_s` for the first. Raises ClientError."""
        results: list[Result] = []
        try:
            while (result := await self._receive(0.0 if results else wait_s)) is not None:
                results.append(result)
        except ClientError:
            if not results:
                raise  # else the next call raises it
        return results

    async def __aiter__(self) -> AsyncIterator[Result]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while (result := await self._receive(None)) is not None:
            yield result

    def cancel(self) -> None:
        """Ends the stream without its remaining results as `Stream.cancel`. Does not wait."""
        if not self._is_closed:
            self._engine.cancel()

    async def close(self) -> None:
        """Frees the stream. An unfinished stream is also ended on the server, which may take a second."""
        if not self._is_closed:
            self._is_closed = True
            await self._engine.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, samples: npt.ArrayLike, flags: int, options: Mapping[str, Any] | None = None) -> None:
        await self._engine.send(self._request(samples, flags, options))

    async def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = await self._engine.receive(wait_s)
        return None if result is None else self._add(result, self._engine.is_complete)
