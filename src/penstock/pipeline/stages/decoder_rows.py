"""The decoder stage's input, the rows of the tickets of a batch as arrays; its replies, and what is new in them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from penstock.errors import StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.speakers import RowFrames, SpeakerFrames, frames_of_rows
from penstock.pipeline.slots.ticket import NO_ROW, OPEN, POLL, START, Column, Ticket
from penstock.runtime import send_to_device


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
    """Encoder frames of each row, with the open ones."""
    open_frames: np.ndarray
    """The last of them, which only a copy of the stream decodes, at the end of its segment."""
    encoded: torch.Tensor
    """[T, D] float32, of all rows, one row after another."""
    options: Mapping[int, ResolvedOptions]
    """By row that starts a stream, or changes it; a start without any has the defaults."""
    speaker_frames: Mapping[int, RowFrames]
    """By row that came by `asr_batch_speakers`."""
    wants_result: np.ndarray
    """[R] bool; False where the client gets only new results: that of a row that decodes nothing is left out. A poll
    always has a result, which says how far the work is."""

    def not_finite(self) -> np.ndarray:
        """The rows with encoder frames on the CPU that are not finite; those on a GPU would have to be waited for."""
        # One sum for all: what is not finite stays in it, and only then each frame is checked.
        if not self.encoded.is_cpu or math.isfinite(self.encoded.sum().item()):
            return np.zeros(0, np.int64)
        frames = (~self.encoded.isfinite().all(dim=1)).numpy().nonzero()[0]
        return np.searchsorted(self.frames.cumsum(), frames, side="right")


def rows_of_tickets(
    tickets: Sequence[Ticket],
    encoded: Sequence[torch.Tensor],
    speakers: Sequence[SpeakerFrames | None],
    subsampling_factor: int,
) -> tuple[DecoderRows, np.ndarray, np.ndarray]:
    """The rows that the features stage has forwarded, one ticket after another; of each [R] its ticket and row in it.

    encoded: of each ticket [T, D]; speakers: likewise, as in `frames_of_rows`.
    """
    rows = tickets[0].rows if len(tickets) == 1 else np.concatenate([ticket.rows for ticket in tickets])
    sizes = np.array([len(ticket.rows) for ticket in tickets])
    starts = sizes.cumsum() - sizes
    forwarded = (rows[:, Column.SLOT] != NO_ROW[Column.SLOT]).nonzero()[0]
    options = {
        int(np.searchsorted(forwarded, start + row)): chosen
        for start, ticket in zip(starts, tickets, strict=True)
        for row, chosen in ticket.options.items()
    }
    ticket_of = np.searchsorted(starts, forwarded, side="right") - 1
    is_direct = np.array([not ticket.is_batched for ticket in tickets])
    slots, generations, numbers, flags, _, last_valid, covered, frames = rows[forwarded].T  # in the order of `Column`
    open_frames = np.where(flags & OPEN > 0, -(-last_valid // subsampling_factor), 0)
    whole = encoded[0] if len(encoded) == 1 else torch.cat(list(encoded))
    wants_result = is_direct[ticket_of] | (flags & POLL > 0)
    row_of = forwarded - starts[ticket_of]
    decoder_rows = DecoderRows(
        slots, generations, numbers, flags, covered, frames, open_frames, whole, options,
        frames_of_rows(speakers, ticket_of, row_of), wants_result,
    )  # fmt: skip
    return decoder_rows, ticket_of, row_of


def padded(encoded: torch.Tensor, first: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
    """Runs of `encoded` [T, D] as [B, max, D] with zeros after them; first, lengths: [B] int64, in ascending order."""
    counts = lengths.tolist()
    batch, longest, total, width = len(counts), max(counts), sum(counts), encoded.shape[1]
    has_all = total == encoded.shape[0]  # each frame belongs to one of the runs
    if has_all and total == batch * longest:
        return encoded.view(batch, longest, width)
    within = np.arange(total) - np.repeat(lengths.cumsum() - lengths, lengths)
    if not has_all:
        chosen = torch.from_numpy(np.repeat(first, lengths) + within)
        encoded = encoded.index_select(0, send_to_device(chosen, encoded.device))
    padded = encoded.new_zeros(batch * longest, width)
    places = torch.from_numpy(np.repeat(np.arange(batch) * longest, lengths) + within)
    return padded.index_copy_(0, send_to_device(places, encoded.device), encoded).view(batch, longest, width)


class ResultChanges:
    """Selects the results that are new to the client of `asr_batch`: most rows complete no chunk or no word."""

    def __init__(self, slots: int):
        self._texts = [""] * slots
        """The last text of each slot's stream."""

    def of_rows(
        self, rows: np.ndarray, answers: Mapping[int, StreamResult | StreamError]
    ) -> dict[int, Sequence[StreamResult] | StreamError]:
        """Returns news from the answers to a request, errors, and all answers to polls; rows: those of its ticket."""
        changed: dict[int, Sequence[StreamResult] | StreamError] = {}
        is_start = (rows[:, Column.FLAGS] & START > 0) & (rows[:, Column.SLOT] >= 0)
        starts = set(np.flatnonzero(is_start).tolist())
        # In the order of the rows: a slot's stream may end and another one start in one request.
        for row in sorted(starts | answers.keys()):
            slot = int(rows[row, Column.SLOT])
            if row in starts:  # also of a row without an answer: the slot's last stream may have ended without a final
                self._texts[slot] = ""
            if (answer := answers.get(row)) is not None:
                if isinstance(answer, StreamError):
                    changed[row] = answer
                    continue
                changes = self.of_results(slot, answer.entries)
                changed[row] = answer.entries if rows[row, Column.FLAGS] & POLL else changes
        return changed

    def of_results(self, slot: int, results: Sequence[StreamResult]) -> list[StreamResult]:
        """Picks a request's results with new text, words or tokens, or with the end of a segment."""
        changed = []
        for result in results:
            if result.is_final or result.words or result.tokens or result.text != self._texts[slot]:
                changed.append(result)
            self._texts[slot] = "" if result.is_final else result.text
        return changed
