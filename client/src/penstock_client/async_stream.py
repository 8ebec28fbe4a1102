"""One audio stream of an `AsyncClient`: send samples, receive results; its transcript grows."""

from collections.abc import AsyncIterator, Mapping

import numpy.typing as npt

from penstock_client.errors import ClientError, StreamId
from penstock_client.protocol import Parameter, Result
from penstock_client.stream import StreamBase
from penstock_client.transport.async_base import AsyncTransport
from penstock_client.transport.server_chunks import ServerChunks


class AsyncStream(StreamBase):
    """A stream opened by an `AsyncClient`. Use it as an async context manager, so that it is always closed.

    One task may send while another iterates. A single task calls `poll` between sends and iterates after `finish`.
    """

    def __init__(
        self,
        stream_id: StreamId,
        transport: AsyncTransport,
        parameters: Mapping[str, Parameter] | None = None,
        chunks: ServerChunks | None = None,
    ):
        super().__init__(stream_id, parameters, chunks)
        self._transport = transport

    async def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Samples wait in the client until they complete a chunk of the server's model, if the client aligns; no samples
        make a request at once. Returns before the reply, but waits while a minute of audio or 64 requests are
        unanswered. Raises ClientError.
        """
        await self._send(samples)

    async def finalize(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the current segment, after these samples if given; the stream continues with the next segment.

        The reply is the segment's final result (`is_final`). Times keep counting from the stream's start.
        """
        await self._send(samples, finalize=True)

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
        """Frees the stream. An unfinished stream is also ended on the server, which may take up to two seconds."""
        if not self._is_closed:
            self._is_closed = True
            await self._transport.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, samples: npt.ArrayLike, *, is_end: bool = False, finalize: bool = False) -> None:
        geometry = None if self._chunks is None else await self._chunks.get_async()
        try:
            for request in self._split(samples, geometry, is_end=is_end, finalize=finalize):
                await self._transport.send(request)
        except ClientError as error:
            self._note(error)
            raise

    async def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        try:
            result = await self._transport.receive(wait_s)
        except ClientError as error:
            self._note(error)
            raise
        return None if result is None else self._add(result, self._transport.is_complete)
