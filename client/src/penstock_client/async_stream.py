"""One audio stream as its user sees it in asyncio: samples in, results out, a transcript that grows."""

from collections.abc import AsyncIterator, Mapping

import numpy.typing as npt

from penstock_client.errors import ClientError, StreamId
from penstock_client.protocol import Parameter, Piece, Result
from penstock_client.stream_base import StreamBase
from penstock_client.transport import AsyncTransport


class AsyncStream(StreamBase):
    """A stream that an `AsyncClient` opened. Use as an async context manager, so that it is closed whatever happens.

    One task may send while another one iterates. Where one task does both, it calls `poll` between sends and iterates
    after `finish`.
    """

    def __init__(
        self, stream_id: StreamId, transport: AsyncTransport, parameters: Mapping[str, Parameter] | None = None
    ):
        super().__init__(stream_id, parameters)
        self._transport = transport

    async def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Does not wait for a reply, but waits while a minute of audio or 64 pieces are unanswered. Raises ClientError.
        """
        await self._send(self._cut(samples))

    async def finalize(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the current segment, maybe with its last samples; the stream goes on with the next one.

        The reply is the segment's final result (`is_final`). Times stay relative to the stream's start.
        """
        await self._send(self._cut(samples, ends_segment=True))

    async def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the audio, maybe with the last samples; the results that are left are then there to iterate over."""
        await self._send(self._cut(samples, is_last=True))

    async def poll(self, wait_s: float = 0.0) -> list[Result]:
        """The results that have arrived; waits up to `wait_s` for the first. Raises ClientError."""
        results: list[Result] = []
        try:
            while (result := await self._receive(0.0 if results else wait_s)) is not None:
                results.append(result)
        except ClientError:
            if not results:
                raise  # else the next call does
        return results

    async def __aiter__(self) -> AsyncIterator[Result]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while (result := await self._receive(None)) is not None:
            yield result

    def cancel(self) -> None:
        """Ends the stream at once, without its results; its place on the server is freed. Waits for nothing.

        Audio that has not gone out is dropped. Who sends or iterates, in any task, gets a StreamClosedError.
        """
        if not self._is_closed:
            self._transport.cancel()

    async def close(self) -> None:
        """Frees the stream. One that is not finished is ended on the server too, which may take a second or two."""
        if not self._is_closed:
            self._is_closed = True
            await self._transport.close()

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            await self._transport.send(piece)

    async def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = await self._transport.receive(wait_s)
        return None if result is None else self._note(result, self._transport.is_complete)
