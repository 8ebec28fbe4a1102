"""Requests for audio streams: one stream's, and the rows of a batch as arrays."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.slots.ticket import END, FINALIZE, START


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
    """The stream's options, accepted with its start only: see `penstock.pipeline.options.stream_options`."""
    finalize: bool = False
    """Ends the segment after these samples; the stream continues with a new segment. No effect with `is_end`."""


class AudioRows(NamedTuple):
    """The rows of one Triton request, or of a batch of them: R rows in order."""

    stream_ids: Sequence[Hashable]
    samples: np.ndarray
    """[n] float32, of all rows, one row after another."""
    lengths: np.ndarray
    """[R] int64, samples of each row."""
    flags: np.ndarray
    """[R] int64, sums of START, END and FINALIZE."""
    options: Mapping[int, Mapping[str, Any]]
    """By row: the stream's options."""
    errors: Mapping[int, StreamError]
    """By row that is no request of any stream."""
    problems: Mapping[int, StreamError]
    """By row whose samples or parameters cannot be used: rejected too, but an END ends its stream."""
    is_batched: bool
    """True for a request whose rows are answered one by one, as one to `asr_batch`."""


def rows_of(requests: Sequence[AudioRequest], is_batched: bool = False) -> AudioRows:
    """The rows of single requests; is_batched: they are answered one by one."""
    problems: dict[int, StreamError] = {}
    samples = []
    for row, request in enumerate(requests):
        row_samples = request.samples
        if row_samples.ndim != 1 or row_samples.dtype != np.float32:
            message = f"samples are {row_samples.dtype} {list(row_samples.shape)}, expected float32 [n]"
            problems[row] = StreamError(ErrorCode.AUDIO_INVALID, message)
            row_samples = np.zeros(0, np.float32)
        if type(request.finalize) is not bool:
            message = f"{FINALIZE_PARAMETER} is {request.finalize!r}; accepted: true, false"
            problems[row] = StreamError(ErrorCode.OPTION_INVALID, message)
        samples.append(row_samples)
    flags = [START * r.is_start + END * r.is_end + FINALIZE * (r.finalize is True) for r in requests]
    return AudioRows(
        stream_ids=[request.stream_id for request in requests],
        samples=np.concatenate([np.zeros(0, np.float32), *samples]) if len(samples) != 1 else samples[0],
        lengths=np.array(list(map(len, samples)), np.int64),
        flags=np.array(flags, np.int64),
        options={row: request.options for row, request in enumerate(requests) if request.options},
        errors={},
        problems=problems,
        is_batched=is_batched,
    )


def join_rows(batch: Sequence[AudioRows]) -> AudioRows:
    """The rows of several requests, one request after the other."""
    if len(batch) == 1:
        return batch[0]
    starts = list(accumulate((len(rows.lengths) for rows in batch), initial=0))

    def joined(name: str) -> dict[int, Any]:
        pairs = zip(starts, batch, strict=False)
        return {start + row: value for start, rows in pairs for row, value in getattr(rows, name).items()}

    return AudioRows(
        stream_ids=[stream_id for rows in batch for stream_id in rows.stream_ids],
        samples=np.concatenate([rows.samples for rows in batch]),
        lengths=np.concatenate([rows.lengths for rows in batch]),
        flags=np.concatenate([rows.flags for rows in batch]),
        options=joined("options"),
        errors=joined("errors"),
        problems=joined("problems"),
        is_batched=True,
    )
