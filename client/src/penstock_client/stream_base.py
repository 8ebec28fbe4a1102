"""What a stream for threads and one for asyncio share: what is sent next, and what the results add up to. No I/O."""

from collections.abc import Mapping

import numpy.typing as npt

from penstock_client.errors import StreamClosedError, StreamId
from penstock_client.protocol import Parameter, Piece, PieceCutter, Result
from penstock_client.transcript import Transcript


class StreamBase:
    """A stream but for its transport."""

    def __init__(self, stream_id: StreamId, parameters: Mapping[str, Parameter] | None = None):
        self.stream_id = stream_id
        self.transcript = Transcript()
        """What the results handed out so far add up to."""
        self._cutter = PieceCutter(stream_id, parameters=parameters)
        self._is_closed = False

    def _cut(self, samples: npt.ArrayLike, *, is_last: bool = False, ends_segment: bool = False) -> list[Piece]:
        self._check_open()
        return self._cutter.cut(samples, is_last, ends_segment)

    def _note(self, result: Result, is_complete: bool) -> Result:
        """Adds a result to the transcript; `is_complete` says that it was the stream's last."""
        self.transcript.add(result)
        if is_complete:
            self.transcript.is_complete = True
            self.transcript.latency_s = result.round_trip_s
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamClosedError(self.stream_id, "the stream is closed")
