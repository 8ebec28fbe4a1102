"""The decoder stage's input: the rows of a batch as arrays, from single requests or from tickets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import StreamError
from penstock.pipeline.options.stream_options import StreamOptions
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.guard import NOT_COUNTED
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import END, FINALIZE, NO_ROW, START, Column, Ticket


@dataclass(slots=True)
class DecoderRequest:
    """The encoder frames that one request of one stream completed, zero or more."""

    lease: Lease
    encoded: torch.Tensor
    """[T, D] float32"""
    covered_samples: int
    """Samples of the stream that the frames cover so far, as in `penstock.frontend.log_mel.MelChunks`."""
    is_start: bool
    is_end: bool
    options: StreamOptions | None = None
    """The stream's options, with its start; None stands for the defaults."""
    finalize: bool = False
    """A segment ends with this request and the stream continues."""
    number: int = NOT_COUNTED
    """The stream's requests before this one."""

    @property
    def flags(self) -> int:
        """The flags of its row of a ticket."""
        return START * self.is_start + END * self.is_end + FINALIZE * self.finalize


class DecodedRows(NamedTuple):
    """The replies to the rows of one Triton request."""

    answers: dict[int, StreamResult | StreamError]
    """By row. A row of a batched request that decoded nothing has none."""
    is_batched: bool

    @property
    def errors(self) -> dict[int, StreamError]:
        """The rejected rows."""
        return {row: answer for row, answer in self.answers.items() if isinstance(answer, StreamError)}


class DecoderRows(NamedTuple):
    """R rows in order; the arrays are [R] int64, columns of a ticket."""

    slots: np.ndarray
    generations: np.ndarray
    numbers: np.ndarray
    flags: np.ndarray
    covered_samples: np.ndarray
    frames: np.ndarray
    """Encoder frames of each row."""
    encoded: torch.Tensor
    """[T, D] float32, of all rows, one row after another."""
    options: Mapping[int, StreamOptions]
    """By row that starts a stream; a start without any has the defaults."""
    wants_result: np.ndarray
    """[R] bool; False where the client gets only news: the result of a row that decodes nothing is left out."""


def rows_of_requests(requests: Sequence[DecoderRequest], width: int) -> DecoderRows:
    """The rows of single requests; width: D."""
    columns = [(*r.lease, r.number, r.flags, r.covered_samples, len(r.encoded)) for r in requests]
    encoded = torch.cat([r.encoded for r in requests]) if requests else torch.zeros(0, width)
    options = {row: r.options for row, r in enumerate(requests) if r.options is not None}
    slots, generations, numbers, flags, covered, frames = np.array(columns, np.int64).reshape(-1, 6).T
    are_wanted = np.ones(len(requests), bool)
    return DecoderRows(slots, generations, numbers, flags, covered, frames, encoded, options, are_wanted)


def rows_of_tickets(
    tickets: Sequence[Ticket], encoded: Sequence[torch.Tensor]
) -> tuple[DecoderRows, np.ndarray, np.ndarray]:
    """The rows that the features stage has forwarded, one ticket after another; of each [R] its ticket and row in it.

    encoded: of each ticket [T, D].
    """
    rows = np.concatenate([ticket.rows for ticket in tickets])
    sizes = np.array([len(ticket.rows) for ticket in tickets])
    starts = sizes.cumsum() - sizes
    ticket_of = np.repeat(np.arange(len(tickets)), sizes)
    row_of = np.arange(len(rows)) - starts[ticket_of]
    is_forwarded = rows[:, Column.SLOT] != NO_ROW[Column.SLOT]
    place_of = is_forwarded.cumsum() - 1
    options = {
        int(place_of[start + row]): chosen
        for start, ticket in zip(starts, tickets, strict=True)
        for row, chosen in ticket.options.items()
    }
    is_direct = np.array([not ticket.is_batched for ticket in tickets])
    rows, ticket_of, row_of = rows[is_forwarded], ticket_of[is_forwarded], row_of[is_forwarded]
    slots, generations, numbers, flags, _, _, covered, frames = rows.T  # in the order of `Column`
    whole = encoded[0] if len(encoded) == 1 else torch.cat(list(encoded))
    found = DecoderRows(slots, generations, numbers, flags, covered, frames, whole, options, is_direct[ticket_of])
    return found, ticket_of, row_of
