"""Rows of many streams: the messages of `asr_batch` that carry them, their answers, and audio to send.

docs/serving.md documents the tensors.
"""

import json
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from tritonclient.grpc import service_pb2

from penstock_client.alignment import Samples, join_samples
from penstock_client.errors import ClientError, ProtocolError, StreamError
from penstock_client.protocol import Parameter, Result
from penstock_client.replies import UNREADABLE, parse_results, stream_error
from penstock_client.transport.grpc_transport import output_values
from penstock_client.transport.resuming import RESUMABLE

MODEL_NAME = "asr_batch"
MAX_ROWS = 1024
"""The server's limit for one request."""
START, END, FINALIZE = 1, 2, 4
"""Flags of a row."""
MOVABLE = frozenset({*RESUMABLE, StreamError.code, ProtocolError.code})
"""The codes of errors after which a stream may succeed on another server: also Triton's own ones, and replies that
cannot be read."""
NO_SAMPLES: Samples = np.empty(0, np.int16)
_NO_OPTIONS = -1
_NAME = "batch"
_LENGTH = struct.Struct("<I")


class Row(NamedTuple):
    """The next part of one stream's audio."""

    number: int
    """The stream's number, 1 or more: the client's own choice."""
    samples: Samples
    """n may be 0."""
    flags: int = 0
    options: str | None = None
    """With START: the stream's options as a JSON object."""


class Reply(NamedTuple):
    """The answer to one request. Rows are counted from 0, in the order of the request."""

    results: Mapping[int, Sequence[Result]]
    """By row: what is new, in order. Rows without anything new are missing."""
    errors: Mapping[int, str]
    """By row: the server's message, as "CODE: text"."""


def encode_request(client_id: str, rows: Sequence[Row]) -> service_pb2.ModelInferRequest:
    """The message that carries rows, 1 to MAX_ROWS. Samples are sent as int16 where all rows have that type."""
    message = service_pb2.ModelInferRequest(model_name=MODEL_NAME)
    message.parameters["client"].string_param = client_id
    samples = join_samples([row.samples for row in rows])
    name, datatype, dtype = ("PCM", "INT16", "<i2") if samples.dtype == np.int16 else ("AUDIO", "FP32", "<f4")
    message.inputs.add(name=name, datatype=datatype, shape=[1, len(samples)])
    message.raw_input_contents.append(samples.astype(dtype, copy=False).tobytes())
    options: list[bytes] = []
    table: list[tuple[int, int, int, int]] = []
    for row in rows:
        table.append((row.number, len(row.samples), row.flags, _NO_OPTIONS if row.options is None else len(options)))
        if row.options is not None:
            options.append(row.options.encode())
    message.inputs.add(name="ROWS", datatype="INT64", shape=[1, len(rows), 4])
    message.raw_input_contents.append(np.array(table, "<i8").tobytes())
    # Also where it is empty: the server batches only requests with the same inputs.
    message.inputs.add(name="OPTIONS", datatype="BYTES", shape=[1, len(options)])
    message.raw_input_contents.append(b"".join(_LENGTH.pack(len(text)) + text for text in options))
    return message


def decode_reply(reply: service_pb2.ModelStreamInferResponse, rows: int) -> Reply:
    """Reads a reply to a request of `rows` rows. Raises StreamError if the request was rejected as a whole, and
    ProtocolError for a reply that is not `asr_batch`'s.
    """
    if reply.error_message:
        raise stream_error(_NAME, reply.error_message)
    values = output_values(reply.infer_response)
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
    """What is new in a stream, and why its segment ended."""

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
        end_s=result.audio_processed_s if result.is_final else 0.0,
    )


class Answer(NamedTuple):
    """What the server has answered to one row of a stream."""

    end_samples: int
    """Samples of the stream up to the row's end."""
    results: Sequence[StreamResult]
    """What is new, in order; empty where nothing is."""
    is_whole: bool = True
    """False for a part of the answer to the last row of a stream of an offline model: more follows."""


OnAnswer = Callable[[int, float], object]
"""Receives the samples of a stream that are answered so far, and the seconds from their push to the answer."""


class Answers:
    """The answers to one stream's rows, in order, until they are taken."""

    def __init__(self, on_answer: OnAnswer | None):
        self.rows = self.samples = 0
        """Answered so far."""
        self._on_answer = on_answer
        self._withheld: list[StreamResult] = []
        """Results of repeated rows, for the next answer."""
        self._waiting: deque[Answer] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, row: int, answer: Answer, round_trip_s: float) -> bool:
        """Adds the answer to the row with this number, from 0. False where that is a repeated row."""
        if row < self.rows:
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
    """With START: the stream's options."""

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

    def again(self, samples: int, parameters: Mapping[str, Parameter] | None = None, ends: bool = True) -> "Part":
        """With its last samples only: as a start with these parameters, or not as a start; where not `ends`, no end."""
        flags = self.flags & ~START if parameters is None else self.flags | START
        flags &= -1 if ends else ~(END | FINALIZE)
        audio = self.audio[len(self.audio) - samples :]
        return replace(self, audio=audio, flags=flags, parameters=parameters or {})

    def row(self, stream_number: int) -> Row:
        """As a row of the stream with this number on its link."""
        options = json.dumps(dict(self.parameters)) if self.is_start else None
        return Row(stream_number, self.audio, self.flags, options)


class Pushed(NamedTuple):
    """A row on its way to the server and back."""

    stream: "Receiver"
    row: Row
    end_samples: int
    """Samples of the stream up to the row's end."""
    pushed_s: float
    """When its last sample was pushed, by the link's clock."""
    number: int = -1
    """As that of its part."""
    server_number: int = 0
    """Servers of the stream before this one."""
    polled: int = 0
    """The flags of the row before, where this one asks for more of its answer."""

    @property
    def flags(self) -> int:
        """Those of the row that is answered."""
        return self.polled or self.row.flags

    def poll(self) -> "Pushed":
        """Asks for more of the answer to this row, which ends a segment; counted and timed as this one."""
        return self._replace(row=Row(self.row.number, NO_SAMPLES), polled=self.flags & (END | FINALIZE))


class Receiver(Protocol):
    """A stream, as a link needs it."""

    stream_id: int

    @property
    def has_words(self) -> bool:
        """True if words of its segment are told: it is moved before others."""

    def answer(self, pushed: Pushed, results: Sequence[Result], error: str | None) -> None:
        """Takes the answer to a row: results, or the server's message where it was rejected."""

    def reject(self, pushed: Pushed, error: ClientError) -> None:
        """The row's request was rejected whole: the server may hold the stream open."""

    def fail(self, error: ClientError, is_open: bool | None = None) -> None:
        """Its row or its server is lost; `is_open`: its end has to be sent."""

    def cancel(self) -> None:
        """The client is closed."""
