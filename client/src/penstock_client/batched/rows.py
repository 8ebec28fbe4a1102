"""Rows of many streams: the messages of `asr_batch` that carry them, their answers, and audio to send.

docs/serving.md documents the tensors.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock_client.alignment import Samples, join_samples
from penstock_client.replies import UNREADABLE, parse_results, stream_error
from penstock_common.errors import ProtocolError, StreamError
from penstock_common.options import Parameter
from penstock_common.results import Result

if TYPE_CHECKING:
    from penstock_client.batched.link import Arrival
    from penstock_client.batched.served import ServedStream

Receiver: TypeAlias = "ServedStream | Arrival"
"""A stream, as a link needs it: it takes the answers to its rows."""
MAX_ROWS = 1024
"""The server's limit for one request."""
START, END, FINALIZE = 1, 2, 4
"""Flags of a row."""
MOVABLE = frozenset(
    {
        "AUDIO_MEMORY_FULL", "CONNECTION_LOST", "PHRASE_MEMORY_FULL", "REPLY_TIMEOUT", "SERVER_DRAINING",
        "SERVER_UNREACHABLE", "STREAM_LIMIT", "STREAM_LOST", "STREAM_NOT_OPEN", StreamError.code, ProtocolError.code,
    }
)  # fmt: skip
"""The codes of errors after which a stream may succeed on another server: also Triton's own ones, and replies that
cannot be read."""
NO_SAMPLES: Samples = np.empty(0, np.int16)
_NO_OPTIONS = -1
_NAME = "batch"


class Row(NamedTuple):
    """The next part of one stream's audio."""

    number: int
    """The stream's number, 1 or more: the client's own choice."""
    samples: Samples
    """n may be 0."""
    flags: int = 0
    options: str | None = None
    """With START: the stream's options as a JSON object; with FINALIZE: those that change."""


class Reply(NamedTuple):
    """The answer to one request. Rows are counted from 0, in the order of the request."""

    results: Mapping[int, Sequence[Result]]
    """By row: what is new, in order. Rows without anything new are missing."""
    errors: Mapping[int, str]
    """By row: the server's message, as "CODE: text"."""


class RowsMessage(NamedTuple):
    """A request to `asr_batch`, whatever the protocol."""

    tensors: Sequence[tuple[str, str, npt.NDArray[Any]]]
    """Name, datatype and values [1, ...] of each input."""
    parameters: Mapping[str, str]


def rows_message(client_id: str, rows: Sequence[Row]) -> RowsMessage:
    """The request that carries rows, 1 to MAX_ROWS. Samples are sent as int16 where all rows have that type.

    All requests have the same inputs, else the server would not batch them.
    """
    samples = join_samples([row.samples for row in rows])
    audio, pcm = (samples[:0], samples) if samples.dtype == np.int16 else (samples, samples[:0])
    options = [row.options for row in rows if row.options is not None]
    table, chosen = [], 0
    for row in rows:
        table.append((row.number, len(row.samples), row.flags, _NO_OPTIONS if row.options is None else chosen))
        chosen += row.options is not None
    tensors = (
        ("AUDIO", "FP32", audio.astype("<f4", copy=False)[np.newaxis]),
        ("PCM", "INT16", pcm.astype("<i2", copy=False)[np.newaxis]),
        ("ROWS", "INT64", np.array([table], "<i8")),
    )
    return RowsMessage(tensors, {"client": client_id} | ({"options": f"[{','.join(options)}]"} if options else {}))


def decode_reply(values: Callable[[str], list[Any] | None], error_message: str, rows: int) -> Reply:
    """Reads a reply to a request of `rows` rows. Raises StreamError if the request was rejected as a whole, and
    ProtocolError for a reply that is not `asr_batch`'s.
    """
    if error_message:
        raise stream_error(_NAME, error_message)
    results = parse_results(_NAME, values)
    try:
        results_of_row = _by_row(values("ROW"), results, rows)
        errors = _by_row(values("ERROR_ROWS"), values("ERRORS") or [], rows)
        return Reply(results_of_row, {row: message.decode() for row, (message,) in errors.items()})
    except UNREADABLE as error:
        raise ProtocolError(_NAME, f"the server's reply cannot be read: {error}") from error


def _by_row(numbers: list[int] | None, entries: list[Any], rows: int) -> dict[int, list[Any]]:
    """Entries by the row that each belongs to."""
    numbers = numbers or []
    if len(numbers) != len(entries) or not all(0 <= number < rows for number in numbers):
        raise ValueError(f"rows {numbers} for {len(entries)} entries of a request with {rows} rows")
    by_row: dict[int, list[Any]] = {}
    for number, entry in zip(numbers, entries, strict=True):
        by_row.setdefault(number, []).append(entry)
    return by_row


@dataclass(frozen=True, slots=True)
class StreamResult(Result):
    """The new part of a stream's text, and why its segment ended."""

    answers_finalize: bool = False
    """True for the final result of a segment that `end_segment` ended."""
    is_last: bool = False
    """True for the stream's last result."""
    end_s: float = 0.0
    """In a final result: where its segment ends in the stream and the next one begins."""


def stream_result(result: Result, round_trip_s: float, flags: int) -> StreamResult:
    """The result with its round trip; `flags` are those of a row whose newest result it is. `dataclasses.replace` and
    `asdict` would take several times as long.
    """
    return StreamResult(
        result.segment,
        result.text,
        result.is_final,
        result.audio_processed_s,
        result.new_words,
        result.new_tokens,
        result.new_timestamps,
        result.alternatives,
        result.language,
        round_trip_s,
        result.stable_chars,
        result.is_final and not flags & (FINALIZE | END),
        answers_finalize=bool(flags & FINALIZE),
        is_last=bool(flags & END),
        word_speakers=result.word_speakers,
        end_s=result.audio_processed_s if result.is_final else 0.0,
    )


class Answer(NamedTuple):
    """The server's answer to one row of a stream."""

    end_samples: int
    """Samples of the stream up to the row's end."""
    results: Sequence[StreamResult]
    """New results, in order; empty where nothing is new."""
    is_whole: bool = True
    """False for a part of the answer to the last row of a stream of an offline model: more follows."""


OnAnswer = Callable[[int, float], object]
"""Receives the samples of a stream that are answered so far, and the seconds from their push to the answer."""


class Answers:
    """The answers to one stream's rows, in order, until they are taken."""

    def __init__(self, on_answer: OnAnswer | None):
        self.rows = self.samples = 0
        """Answered so far."""
        self.have_begun = False
        """True once a row is answered, also in part."""
        self._on_answer = on_answer
        self._withheld: list[StreamResult] = []
        """Results of repeated rows, for the next answer."""
        self._waiting: deque[Answer] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, row: int, answer: Answer, round_trip_s: float) -> bool:
        """Adds the answer to the row with this number, from 0. False where that is a repeated row."""
        self.have_begun = True
        if row < self.rows:
            # The caller has an answer to this row: what is new in it goes with the next one.
            self._withheld += answer.results
            return False
        if answer.is_whole:
            self.rows = row + 1
        self.samples = answer.end_samples
        self._waiting.append(answer._replace(results=[*self._withheld, *answer.results]))
        self._withheld = []
        if self._on_answer is not None:
            self._on_answer(answer.end_samples, round_trip_s)
        return True

    def next(self) -> Answer | None:
        """The next answer, or None."""
        return self._waiting.popleft() if self._waiting else None


@dataclass(frozen=True, slots=True)
class Part:
    """A row of a stream, wherever it is sent to."""

    audio: Samples
    flags: int
    end_samples: int
    """Samples of the stream up to its end."""
    number: int
    """Rows of the stream before it; -1 for one that the caller did not make."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """With START: the stream's options; with FINALIZE: those that change."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.audio)

    @property
    def is_start(self) -> bool:
        """True for the stream's first row."""
        return bool(self.flags & START)

    @property
    def is_end(self) -> bool:
        """True for the stream's last row."""
        return bool(self.flags & END)

    @property
    def is_final(self) -> bool:
        """True where a segment ends."""
        return bool(self.flags & (END | FINALIZE))

    @property
    def changes(self) -> Mapping[str, Parameter]:
        """The options that change with it, in a running stream."""
        return {} if self.is_start else self.parameters

    def again(self, samples: int, parameters: Mapping[str, Parameter] | None = None, ends: bool = True) -> "Part":
        """With its last samples only: as a start with these parameters, or not as a start; where not `ends`, no end."""
        flags = self.flags & ~START if parameters is None else self.flags | START
        flags &= -1 if ends else ~(END | FINALIZE)
        # Not [-samples:], which is all of it for 0.
        audio = self.audio[len(self.audio) - samples :]
        # Changes go with the end that makes them; without it the start has them.
        own = self.changes if ends and parameters is None else parameters
        return replace(self, audio=audio, flags=flags, parameters=own or {})

    def row(self, stream_number: int) -> Row:
        """The row of the stream with this number on its link."""
        options = json.dumps(dict(self.parameters)) if self.is_start or self.parameters else None
        return Row(stream_number, self.audio, self.flags, options)


class Pushed(NamedTuple):
    """A row on its way to the server and back."""

    stream: Receiver
    row: Row
    end_samples: int
    """Samples of the stream up to the row's end."""
    pushed_s: float
    """Time at which its last sample was pushed, by the link's clock."""
    number: int = -1
    """The number of its part."""
    server: object = None
    """The stream's state on the server that the row goes to; None where no answer is awaited."""
    polled: int = 0
    """The flags of the row before, where this one asks for more of its answer."""

    @property
    def flags(self) -> int:
        """Flags of the row that is answered."""
        return self.polled or self.row.flags

    def poll(self) -> "Pushed":
        """Asks for more of the answer to this row, which ends a segment; counted and timed as this one."""
        return self._replace(row=Row(self.row.number, NO_SAMPLES), polled=self.flags & (END | FINALIZE))
