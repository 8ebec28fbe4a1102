"""Requests for audio streams as the rows of a batch: those of one stream each, and those to `asr_batch`.

A bad row is rejected alone. A request to `asr_batch` whose arrays do not fit together is rejected as a whole.
"""

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import ErrorCode, StreamError, cut, shown
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.slots.ticket import END, FINALIZE, START

MAX_ROWS = 1024
MAX_CLIENT_CHARACTERS = 64
_FLAGS = START | END | FINALIZE
_PCM_FULL_SCALE = np.float32(1 / 32768)


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
    options: Mapping[str, Any] = field(default_factory=dict)
    """The stream's options, with its start: see `penstock.pipeline.options.stream_options`. With `finalize`, those of
    `penstock_common.options.CHANGEABLE` that change after it."""
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


class SpeakerAudio(NamedTuple):
    """Samples and rows of a request to `asr_batch_speakers`, for the speaker model; `features` has checked them."""

    samples: np.ndarray
    """[n] float32, of all rows, one row after another."""
    lengths: np.ndarray
    """[R] int64, samples of each row."""
    flags: np.ndarray
    """[R] int64; those of a ticket of an offline model tell when the work is done."""


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
        # No copy for one request alone, as each to `asr` is.
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


def read_parameters(parameters: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """`client` and the parsed `options`, the request parameters of `asr_batch`.

    Options are no tensor: requests with different inputs never share a batch.
    StreamError OPTION_INVALID if the client is missing or wrong, or options are no JSON array.
    """
    others = sorted(set(parameters) - {"client", "options"})
    if others:
        known = "known: client, options"
        raise StreamError(ErrorCode.OPTION_INVALID, f"{shown(others[0])} is not accepted by asr_batch; {known}")
    client = parameters.get("client")
    if not isinstance(client, str) or not 1 <= len(client) <= MAX_CLIENT_CHARACTERS:
        given = shown(client) if "client" in parameters else "missing"
        accepted = f"a text of 1 to {MAX_CLIENT_CHARACTERS} characters that no other connection uses"
        raise StreamError(ErrorCode.OPTION_INVALID, f"client is {given}; accepted: {accepted}")
    text = parameters.get("options", "[]")
    try:
        options = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise StreamError(ErrorCode.OPTION_INVALID, f"options are not JSON: {cut(str(error))}") from error
    if not isinstance(options, list):
        raise StreamError(ErrorCode.OPTION_INVALID, f"options are {shown(text)}; accepted: a JSON array of objects")
    return client, options


def read_samples(audio: np.ndarray, pcm: np.ndarray) -> np.ndarray:
    """The samples of all rows [n] float32 from AUDIO [1, n] float32 or PCM [1, n] int16; one of them is empty."""
    for given in (audio, pcm):
        if given.ndim != 2 or len(given) != 1:
            raise _invalid(f"samples are {list(given.shape)}; accepted: [1, n]")
    if audio.size and pcm.size:
        raise _invalid("both AUDIO and PCM have samples; accepted: one of them, the other one empty")
    return pcm[0].astype(np.float32) * _PCM_FULL_SCALE if pcm.size else audio[0]


def read_rows(
    client: str, rows: np.ndarray, samples: np.ndarray, options: Sequence[Any], max_stream_samples: int
) -> AudioRows:
    """Splits a request.

    rows: ROWS [1, R, 4] int64: stream number, samples, flags, index into `options` or -1; samples: of all rows [n]
    float32, one row after another; options: of streams that start or change, from JSON; max_stream_samples: limit of
    the samples of one stream, however many rows they have.
    StreamError REQUEST_INVALID if they do not fit together.
    """
    if rows.ndim != 3 or rows.shape[0] != 1 or rows.shape[2] != 4:
        raise _invalid(f"ROWS is {list(rows.shape)}; accepted: [1, R, 4]")
    count = rows.shape[1]
    if not 1 <= count <= MAX_ROWS:
        raise _invalid(f"ROWS has {count} rows; accepted: 1 to {MAX_ROWS}")
    numbers, lengths, flags, choices = rows[0].T
    # A single length is checked first: a sum of any numbers may overflow.
    if (lengths < 0).any() or (lengths > len(samples)).any() or int(lengths.sum()) != len(samples):
        raise _invalid(f"the samples of ROWS do not add up to the {len(samples)} samples given")
    errors: dict[int, StreamError] = {}
    problems = _too_long(numbers, lengths, max_stream_samples) if len(samples) > max_stream_samples else {}
    chosen: dict[int, Mapping[str, Any]] = {}
    is_plain = (numbers >= 1) & (flags >= 0) & (flags <= _FLAGS) & (choices == -1)
    for row in np.flatnonzero(~is_plain).tolist():
        number, flag, choice = int(numbers[row]), int(flags[row]), int(choices[row])
        if (error := _row_error(number, flag)) is not None:
            errors[row] = error
            continue
        if choice == -1:
            continue
        if not 0 <= choice < len(options):
            accepted = f"-1 to {len(options) - 1}"
            problems[row] = _invalid(f"the options are number {choice} of {len(options)}; accepted: {accepted}")
        elif not isinstance(options[choice], dict):
            given = f"the options are {shown(options[choice])}; accepted: a JSON object"
            problems[row] = StreamError(ErrorCode.OPTION_INVALID, given)
        else:
            chosen[row] = options[choice]
    stream_ids = [StreamNumber(client, number) for number in numbers.tolist()]
    return AudioRows(stream_ids, samples, lengths, flags, chosen, errors, problems, is_batched=True)


def _too_long(numbers: np.ndarray, lengths: np.ndarray, most: int) -> dict[int, StreamError]:
    """By row that would bring its stream above `most` samples: why it is rejected."""
    taken: Counter[int] = Counter()
    problems = {}
    for row, (number, length) in enumerate(zip(numbers.tolist(), lengths.tolist(), strict=True)):
        if (total := taken[number] + length) > most:
            problems[row] = StreamError(ErrorCode.AUDIO_INVALID, f"{total} samples in one request, at most {most}")
        else:
            taken[number] = total
    return problems


def _row_error(number: int, flags: int) -> StreamError | None:
    """Why a row is no request of any stream."""
    if number < 1:
        return _invalid(f"stream {number}: the stream number is {number}; accepted: 1 or more")
    if not 0 <= flags <= _FLAGS:
        accepted = f"sums of {START} (start), {END} (end) and {FINALIZE} (finalize)"
        return _invalid(f"stream {number}: flags are {flags}; accepted: {accepted}")
    return None


def _invalid(message: str) -> StreamError:
    return StreamError(ErrorCode.REQUEST_INVALID, message)
