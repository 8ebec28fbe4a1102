"""Requests for audio streams: one stream's, and the rows of one Triton request."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from penstock.errors import StreamError


class StreamNumber(NamedTuple):
    """Identifies a stream of a client that sends many in one request."""

    client: str
    number: int

    def __repr__(self) -> str:
        return f"{self.number} of client {self.client!r}"


@dataclass(frozen=True)
class AudioRequest:
    """One request of one stream: samples and flags."""

    stream_id: Hashable
    samples: np.ndarray
    """[n] float32 at the checkpoint's rate, mono, full scale 1; n may be 0."""
    is_start: bool = False
    is_end: bool = False
    options: dict = field(default_factory=dict)
    """The stream's options, accepted with its start only: see `penstock.pipeline.stream_options`."""
    finalize: bool = False
    """Ends the segment after these samples; the stream continues with a new segment. No effect with `is_end`."""

    @property
    def is_final(self) -> bool:
        """True if a segment ends with this request."""
        return self.is_end or self.finalize


class AudioRows(NamedTuple):
    """What one Triton request asks for."""

    row_count: int
    """R, rows of the request, the rejected ones too."""
    requests: dict[int, AudioRequest]
    """By row, in order."""
    errors: dict[int, StreamError]
    """By rejected row."""
    is_batched: bool
    """True for a request to `asr_batch`, whose rows are answered one by one."""
