"""Ticket: what the features stage passes to the later stages with a request, signed against forgery.

A request has one row for each stream that it carries audio of. A row that starts a stream carries the stream's
validated options, so that they are parsed and phrases tokenized only once.

A ticket names slots. Clients can reach the later stages of a server directly, so a forged ticket would reach another
stream's state. The stages of one server share a key in their runtime directory.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions

_KEY_BYTES = 32
_HEADER = 3  # rows, whether they came as one batched request, when
_MESSAGE = TypeAdapter(tuple[dict[int, ResolvedOptions], dict[int, tuple[str, str]]])
"""Options by row that starts, and code and message by rejected row."""
START, END, FINALIZE = 1, 2, 4
"""Flags of a row, added up; the first two are those of a Triton sequence request."""
POLL, COMPLETE, LOCAL, LIVE = 8, 16, 32, 64
"""Flags of rows of an offline model, which only `features` sets: all samples of the stream have come, and its client
polls; with this row's frames the log-mel is complete; the recording is long, so attention is local; the stream is live,
so its frames are those of windows. END means there that nothing of the stream is left."""
OPEN = 128
"""With FINALIZE, which only `features` sets: the row's last chunk is unfinished. It is encoded and decoded on a copy of
the stream's state, which reports the words of the segment's end, and comes again with more audio."""


SPEAKER_MODE = 256
"""In a start of a stream that asks for speakers: added as often as its mode's number in `SPEAKER_MODES`, from 1."""


class Column(IntEnum):
    """Columns of a ticket's rows."""

    SLOT = 0
    """Negative: the row was rejected."""
    GENERATION = 1
    NUMBER = 2
    """The stream's requests before this one: a later stage notices one that is missing."""
    FLAGS = 3
    CHUNKS = 4
    LAST_VALID = 5
    """`last_valid_mel_frames` of `penstock.frontend.log_mel.ChunkRows`."""
    COVERED = 6
    """`covered_samples`, likewise."""
    FRAMES = 7
    """Encoder frames of the chunks."""

    # From `features` of an offline model to its encoder, in place of two others:
    LIVE_WINDOW = LAST_VALID
    """A live stream's `LiveWindow`, packed, where the stream starts."""
    SEGMENT_END = FRAMES
    """With FINALIZE, the samples of the stream before the segment's end."""


def encoder_frame_counts(
    chunks: np.ndarray, last_valid: np.ndarray, chunk_mel_frames: int, subsampling_factor: int
) -> np.ndarray:
    """`Column.FRAMES` [R] int64 of rows: ceil(valid / factor) of the last chunk, the others whole.

    chunks, last_valid: [R] int64, `Column.CHUNKS` and `Column.LAST_VALID`.
    """
    whole = chunk_mel_frames // subsampling_factor
    return np.maximum(chunks - 1, 0) * whole - (-last_valid // subsampling_factor)


NO_ROW = np.array([-1, *[0] * (len(Column) - 1)], np.int64)
"""A rejected row."""


@dataclass(frozen=True)
class Ticket:
    """Travels as int64: a header, the rows, options and errors as JSON where there are any, and the signature."""

    rows: np.ndarray
    """[R, 8] int64, see `Column`."""
    received_ns: int = 0
    """Time at which the features stage received the request's audio, on the machine's monotonic clock."""
    is_batched: bool = False
    """True for a request to `asr_batch`, whose rows are answered one by one."""
    options: Mapping[int, ResolvedOptions] = field(default_factory=dict)
    """By row that starts a stream, or changes its options where a segment ends."""
    errors: Mapping[int, StreamError] = field(default_factory=dict)
    """By rejected row."""


class TicketSigner:
    """Writes signed tickets and verifies them."""

    def __init__(self, key: bytes):
        self._keyed = blake2b(key=key, digest_size=8)  # copied for each ticket: setting up the key costs more

    @classmethod
    def shared(cls, directory: Path) -> "TicketSigner":
        """Returns a signer with the key in `directory`; the first process creates the key."""
        path, own = directory / "key", directory / f"key-{secrets.token_hex(8)}"
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(own, path)  # atomic, and never replaces another process's key
        own.unlink()
        return cls(path.read_bytes())

    def sign(self, numbers: np.ndarray) -> int:
        """Returns the signature of int64 numbers [n]."""
        keyed = self._keyed.copy()
        keyed.update(numbers.tobytes())  # stages share a machine, so also its byte order
        return int.from_bytes(keyed.digest(), "little", signed=True)

    def pack(self, ticket: Ticket) -> np.ndarray:
        """Returns the signed ticket, [n] int64."""
        head, message = _HEADER + ticket.rows.size, b""
        if ticket.options or ticket.errors:
            errors = {row: (error.code.name, error.message) for row, error in ticket.errors.items()}
            message = _MESSAGE.dump_json((dict(ticket.options), errors), exclude_defaults=True)
            # Blanks at the end are no part of JSON; int64 takes eight bytes.
            message += b" " * (-len(message) % 8)
        packed = np.empty(head + len(message) // 8 + 1, np.int64)
        packed[:_HEADER] = len(ticket.rows), ticket.is_batched, ticket.received_ns
        packed[_HEADER:head] = ticket.rows.ravel()
        if message:
            packed[head:-1] = np.frombuffer(message, np.int64)
        packed[-1] = self.sign(packed[:-1])
        return packed

    def with_rows(self, packed: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Returns a signed ticket [n] int64 like `packed`, which has been verified, with other rows [R, 8]."""
        changed = packed.copy()
        changed[_HEADER : _HEADER + rows.size] = rows.ravel()
        changed[-1] = self.sign(changed[:-1])
        return changed

    def unpack(self, packed: np.ndarray, reads_rest: bool = False) -> Ticket:
        """Reads a ticket [n] int64. StreamError REQUEST_INVALID for a wrong signature.

        reads_rest: False leaves `options` and `errors` empty; 2,000 phrases take milliseconds to read.
        """
        # Before anything is read: a forged ticket must not even reach the parser.
        if len(packed) <= _HEADER or int(packed[-1]) != self.sign(packed[:-1]):
            raise StreamError(
                ErrorCode.REQUEST_INVALID, "a model after `features` accepts only requests forwarded by `features`"
            )
        count, is_batched, received_ns = packed[:_HEADER].tolist()
        head = _HEADER + count * len(Column)
        rows = packed[_HEADER:head].reshape(count, len(Column))
        if not reads_rest or head == len(packed) - 1:
            return Ticket(rows, received_ns, bool(is_batched))
        options, errors = _MESSAGE.validate_json(packed[head:-1].tobytes())
        rejected = {row: StreamError(ErrorCode[code], message) for row, (code, message) in errors.items()}
        return Ticket(rows, received_ns, bool(is_batched), options, rejected)
