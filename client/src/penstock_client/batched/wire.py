"""The messages of `asr_batch`: rows of many streams in one request, and the results of many rows in one reply. No I/O.

docs/serving.md documents the tensors.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from penstock_client.alignment import Samples, join_samples
from penstock_client.errors import ProtocolError
from penstock_client.protocol import Result
from penstock_client.replies import UNREADABLE, parse_results, stream_error
from penstock_client.transport.grpc_wire import output_values

MODEL_NAME = "asr_batch"
MAX_ROWS = 1024
"""The server's limit for one request."""
START, END, FINALIZE = 1, 2, 4
"""Flags of a row."""
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
