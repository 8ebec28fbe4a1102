"""One audio stream of a `Client` or `AsyncClient`: send samples, receive results; its transcript grows."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from penstock_client.protocol import FINALIZE, Request
from penstock_client.transport.base import AsyncTransport, Transport
from penstock_common.errors import ClientError, StreamClosedError, StreamId
from penstock_common.options import Parameter, changes_of
from penstock_common.results import Result
from penstock_common.samples import as_samples
from penstock_common.transcript import Transcript


class StreamBase:
    """The part of a stream without I/O, shared by `Stream` and `AsyncStream`."""

    def __init__(
        self,
        stream_id: StreamId,
        parameters: Mapping[str, Parameter] | None = None,
    ):
        self._stream_id = stream_id
        self.transcript = Transcript()
        """Accumulates the results that were received."""
        self.start_ms = 0
        """The time of the first sample, which counts in the times of all words."""
        self._parameters = parameters or {}
        self._is_started = self._is_finished = self._is_closed = False

    def _requests(
        self,
        samples: npt.ArrayLike,
        *,
        is_end: bool = False,
        finalize: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> list[Request]:
        """The request of these samples, after a start where options change with it."""
        self._check_open()
        if self._is_finished:
            raise StreamClosedError(self._stream_id, "the stream is finished and accepts no more audio")
        audio, changes = as_samples(samples).tobytes(), changes_of(options)
        ends: dict[str, Parameter] = {**FINALIZE, **changes} if finalize else {}
        requests = []
        if changes and not self._is_started:  # a start has the options before them
            requests, self._is_started = [Request(b"", True, False, self._parameters)], True
        parameters = ends if self._is_started else {**self._parameters, **ends}
        requests.append(Request(audio, not self._is_started, is_end, parameters))
        self._is_started, self._is_finished = True, is_end
        return requests

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
            raise StreamClosedError(self._stream_id, "the stream is closed")


class Stream(StreamBase):
    """A stream opened by a `Client`. Use it as a context manager, so that it is always closed.

    One thread may send while another iterates. A single thread calls `poll` between sends and iterates after `finish`.
    """

    def __init__(
        self,
        stream_id: StreamId,
        transport: Transport,
        parameters: Mapping[str, Parameter] | None = None,
        owner: object = None,
    ):
        super().__init__(stream_id, parameters)
        self._transport = transport
        self._owner = owner  # referenced, so that a client is not closed while one of its streams is used

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the first audio."""
        return self._transport.name

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that complete no chunk, and wait in the client for those that do."""
        return self._transport.held_samples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or 'not yet opened'}>"

    def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Samples wait in the client until they complete a chunk of the server's model, if the client aligns; no samples
        make a request at once. Returns before the reply, but blocks while two minutes of audio are unanswered. Raises
        ClientError.
        """
        self._send(samples)

    def finalize(self, samples: npt.ArrayLike = (), options: Mapping[str, Any] | None = None) -> None:
        """Ends the current segment, after these samples if given; the stream continues with the next segment.

        The reply is the segment's final result (`is_final`). Times keep counting from the stream's start. options:
        those of `options.CHANGEABLE` that change from here on; ValueError for others.
        """
        self._send(samples, finalize=True, options=options)

    def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream, after these samples if given. Iterate for the remaining results."""
        self._send(samples, is_end=True)

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
        if not self._is_closed:
            self._transport.cancel()

    def close(self) -> None:
        """Frees the stream. An unfinished stream is also ended on the server, which may take a second."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(
        self,
        samples: npt.ArrayLike,
        *,
        is_end: bool = False,
        finalize: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        for request in self._requests(samples, is_end=is_end, finalize=finalize, options=options):
            self._transport.send(request)

    def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = self._transport.receive(wait_s)
        return None if result is None else self._add(result, self._transport.is_complete)


class AsyncStream(StreamBase):
    """A stream opened by an `AsyncClient`. Use it as an async context manager, so that it is always closed.

    One task may send while another iterates. A single task calls `poll` between sends and iterates after `finish`.
    """

    def __init__(
        self,
        stream_id: StreamId,
        transport: AsyncTransport,
        parameters: Mapping[str, Parameter] | None = None,
    ):
        super().__init__(stream_id, parameters)
        self._transport = transport

    @property
    def name(self) -> str:
        """The stream's name in the server's log; empty before the first audio."""
        return self._transport.name

    @property
    def held_samples(self) -> int:
        """Samples at the end of what was sent that complete no chunk, and wait in the client for those that do."""
        return self._transport.held_samples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or 'not yet opened'}>"

    async def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Samples wait in the client until they complete a chunk of the server's model, if the client aligns; no samples
        make a request at once. Returns before the reply, but waits while two minutes of audio are unanswered. Raises
        ClientError.
        """
        await self._send(samples)

    async def finalize(self, samples: npt.ArrayLike = (), options: Mapping[str, Any] | None = None) -> None:
        """Ends the current segment, after these samples if given; the stream continues with the next segment.

        The reply is the segment's final result (`is_final`). Times keep counting from the stream's start. options:
        those of `options.CHANGEABLE` that change from here on; ValueError for others.
        """
        await self._send(samples, finalize=True, options=options)

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the stream, after these samples if given. Iterate for the remaining results."""
        await self._send(samples, is_end=True)

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
        """Ends the stream without its remaining results and frees its slot on the server. Does not wait.

        Drops audio that has not been sent. Calls to send or iterate raise StreamClosedError, also in other tasks.
        """
        if not self._is_closed:
            self._transport.cancel()

    async def close(self) -> None:
        """Frees the stream. An unfinished stream is also ended on the server, which may take a second."""
        if not self._is_closed:
            self._is_closed = True
            await self._transport.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(
        self,
        samples: npt.ArrayLike,
        *,
        is_end: bool = False,
        finalize: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        for request in self._requests(samples, is_end=is_end, finalize=finalize, options=options):
            await self._transport.send(request)

    async def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = await self._transport.receive(wait_s)
        return None if result is None else self._add(result, self._transport.is_complete)
