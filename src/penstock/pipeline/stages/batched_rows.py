"""The rows of a request to `asr_batch`: audio of many streams as flat arrays. Independent of Triton.

A bad row is rejected alone. A request whose arrays do not fit together is rejected as a whole.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import ErrorCode, StreamError, cut, shown
from penstock.pipeline.slots.ticket import END, FINALIZE, START
from penstock.pipeline.stages.audio_rows import AudioRows, StreamNumber

MAX_ROWS = 1024
MAX_CLIENT_CHARACTERS = 64
_FLAGS = START | END | FINALIZE
_PCM_FULL_SCALE = np.float32(1 / 32768)


def read_client(parameters: Mapping[str, Any]) -> str:
    """The only request parameter of `asr_batch`; StreamError OPTION_INVALID if it is missing or wrong."""
    others = sorted(set(parameters) - {"client"})
    if others:
        raise StreamError(ErrorCode.OPTION_INVALID, f"{shown(others[0])} is not accepted by asr_batch; known: client")
    client = parameters.get("client")
    if not isinstance(client, str) or not 1 <= len(client) <= MAX_CLIENT_CHARACTERS:
        given = shown(client) if "client" in parameters else "missing"
        accepted = f"a text of 1 to {MAX_CLIENT_CHARACTERS} characters that no other connection uses"
        raise StreamError(ErrorCode.OPTION_INVALID, f"client is {given}; accepted: {accepted}")
    return client


def read_samples(audio: np.ndarray | None, pcm: np.ndarray | None) -> np.ndarray:
    """The samples of all rows [n] float32 from AUDIO [1, n] float32 or PCM [1, n] int16."""
    if (audio is None) == (pcm is None):
        raise _invalid(f"{'neither' if audio is None else 'both'} AUDIO and PCM given; accepted: one of them")
    given = pcm if audio is None else audio
    assert given is not None
    if given.ndim != 2 or len(given) != 1:
        raise _invalid(f"samples are {list(given.shape)}; accepted: [1, n]")
    return given[0] if audio is not None else given[0].astype(np.float32) * _PCM_FULL_SCALE


def read_rows(
    client: str, rows: np.ndarray, samples: np.ndarray, options: Sequence[bytes], max_stream_samples: int
) -> AudioRows:
    """Splits a request.

    rows: ROWS [1, R, 4] int64: stream number, samples, flags, index into `options` or -1; samples: of all rows [n]
    float32, one row after another; options: JSON objects of streams that start; max_stream_samples: limit of the
    samples of one stream, however many rows they have.
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
    parsed: dict[int, Mapping[str, Any] | StreamError] = {}
    is_plain = (numbers >= 1) & (flags >= 0) & (flags <= _FLAGS) & (choices == -1)
    for row in np.flatnonzero(~is_plain).tolist():
        number, flag, choice = int(numbers[row]), int(flags[row]), int(choices[row])
        if (error := _row_error(number, flag)) is not None:
            errors[row] = error
            continue
        result: Mapping[str, Any] | StreamError | None = _options_problem(flag, choice, len(options))
        if result is None:
            if choice not in parsed:
                parsed[choice] = _read_options(options[choice])
            result = parsed[choice]
        if isinstance(result, StreamError):
            problems[row] = result
        else:
            chosen[row] = result
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


def _options_problem(flags: int, choice: int, options: int) -> StreamError | None:
    if not -1 <= choice < options:
        return _invalid(f"the options are number {choice} of {options}; accepted: -1 to {options - 1}")
    if choice >= 0 and not flags & START:
        return StreamError(ErrorCode.OPTION_INVALID, "options are given after the start; accepted: -1")
    return None


def _read_options(text: bytes) -> Mapping[str, Any] | StreamError:
    try:
        options = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        return StreamError(ErrorCode.OPTION_INVALID, f"the options are not JSON: {cut(str(error))}")
    if not isinstance(options, dict):
        return StreamError(ErrorCode.OPTION_INVALID, f"the options are {shown(options)}; accepted: a JSON object")
    return options


def _invalid(message: str) -> StreamError:
    return StreamError(ErrorCode.REQUEST_INVALID, message)
