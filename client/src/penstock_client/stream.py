"""One audio stream as its user sees it: samples in, results out, a transcript that grows."""

from collections.abc import Iterator, Mapping

import numpy.typing as npt

from penstock_client.errors import ClientError, StreamClosedError, StreamId
from penstock_client.protocol import Parameter, PieceCutter, Result
from penstock_client.transcript import Transcript
from penstock_client.transport import Transport


class Stream:
    """A stream that a client opened. Use as a context manager, so that it is closed whatever happens.

    One thread may send while another one iterates. Where one thread does both, it calls `poll` between sends and
    iterates after `finish`.
    """

    def __init__(self, stream_id: StreamId, transport: Transport, parameters: Mapping[str, Parameter] | None = None):
        self.stream_id = stream_id
        self.transcript = Transcript()
        """What the results handed out so far add up to."""
        self._transport = transport
        self._cutter = PieceCutter(stream_id, parameters=parameters)
        self._is_closed = False

    def send(self, samples: npt.ArrayLike) -> None:
        """Sends mono audio [n] at 16 kHz: floats in -1 .. 1, or int16.

        Does not wait for a reply, but blocks while a minute of audio or 64 pieces are unanswered. Raises ClientError.
        """
        self._send(samples, is_last=False)

    def finish(self, samples: npt.ArrayLike = ()) -> None:
        """Ends the audio, maybe with the last samples; the results that are left are then there to iterate over."""
        self._send(samples, is_last=True)

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

    def close(self) -> None:
        """Frees the stream. One that is not finished is ended on the server too, which may take a second or two."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, samples: npt.ArrayLike, is_last: bool) -> None:
        self._check_open()
        for piece in self._cutter.cut(samples, is_last):
            self._transport.send(piece)

    def _receive(self, wait_s: float | None) -> Result | None:
        self._check_open()
        result = self._transport.receive(wait_s)
        if result is not None:
            self.transcript.add(result)
            if self._transport.is_complete:
                self.transcript.is_complete = True
                self.transcript.latency_s = result.round_trip_s
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamClosedError(self.stream_id, "the stream is closed")
