"""One audio stream as its user sees it: samples in, results out, a transcript that grows."""

from collections.abc import Iterator, Mapping

import numpy.typing as npt

from penstock_client.errors import ClientError, StreamId
from penstock_client.protocol import Parameter, Piece, Result
from penstock_client.stream_base import StreamBase
from penstock_client.transport import Transport


class Stream(StreamBase):
    """A stream that a client opened. Use as a context manager, so that it is closed whatever happens.

    One thread may send while another one iterates. Where one thread does both, it calls `poll` between sends and
    iterates after `finish`.
    """

    def __init__(self, stream_id: StreamId, transport: Transport, parameters: Mapping[str, Parameter] | None = None):
        super().__init__(stream_id, parameters)
        self._transport = transport

    def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Does not wait for a reply, but blocks while a minute of audio or 64 pieces are unanswered. Raises ClientError.
        """
        self._send(self._cut(samples))

    def finalize(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the current segment, maybe with its last samples; the stream goes on with the next one.

        The reply is the segment's final result (`is_final`). Times stay relative to the stream's start.
        """
        self._send(self._cut(samples, ends_segment=True))

    def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the audio, maybe with the last samples; the results that are left are then there to iterate over."""
        self._send(self._cut(samples, is_last=True))

    def poll(self, wait_s: float = 0.0) -> list[Result]:
        """The results that have arrived; waits up to `wait_s` for the first. Raises ClientError."""
        results: list[Result] = []
        try:
            while (result := self._receive(0.0 if results else wait_s)) is not None:
                results.append(result)
        except ClientError:
            if not results:
                raise  # else the next call does
        return results

    def __iter__(self) -> Iterator[Result]:
        """Results as they arrive, until the stream is finished and answered. Raises ClientError."""
        while (result := self._receive(None)) is not None:
            yield result

    def cancel(self) -> None:
        """Ends the stream at once, without its results; its place on the server is freed. Waits for nothing.

        Audio that has not gone out is dropped. Who sends or iterates, in any thread, gets a StreamClosedError.
        """
        if not self._is_closed:
            self._transport.cancel()

    def close(self) -> None:
        """Frees the stream. One that is not finished is ended on the server too, which may take a second or two."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._transport.send(piece)

    def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = self._transport.receive(wait_s)
        return None if result is None else self._note(result, self._transport.is_complete)
