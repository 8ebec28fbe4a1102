"""The rows of Triton requests through the decoder stage, in order within each stream."""

from itertools import islice
from typing import NamedTuple

import torch

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.decoder_stage import DecoderRequest, DecoderStage
from penstock.pipeline.results import StreamResult
from penstock.pipeline.rounds import process_in_rounds
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.slots.ticket import END, FINALIZE, START, Column, Ticket


class DecodedRow(NamedTuple):
    """The reply to one row."""

    request: DecoderRequest
    answer: StreamResult | StreamError


def decode_rows(
    stage: DecoderStage, tickets: list[Ticket | StreamError], encoded: list[torch.Tensor]
) -> list[dict[int, DecodedRow] | StreamError]:
    """Returns the replies to each Triton request of a batch by row, without rows that an earlier stage rejected.

    encoded: of each request [T, D], the frames of all rows. A StreamError rejects the request as a whole.
    """
    batch = [_requests(ticket, frames) for ticket, frames in zip(tickets, encoded, strict=True)]
    requests = [one for found in batch if not isinstance(found, StreamError) for one in found.values()]
    answers = process_in_rounds(stage.process, requests, lambda request: request.lease.slot)
    decoded = map(DecodedRow, requests, answers)
    return [
        found if isinstance(found, StreamError) else dict(zip(found, islice(decoded, len(found)), strict=True))
        for found in batch
    ]


def _requests(ticket: Ticket | StreamError, encoded: torch.Tensor) -> dict[int, DecoderRequest] | StreamError:
    if isinstance(ticket, StreamError):
        return ticket
    if len(encoded) != ticket.rows[:, Column.FRAMES].sum():
        return StreamError(ErrorCode.REQUEST_INVALID, f"{len(encoded)} encoder frames are not those of the ticket")
    requests, start = {}, 0
    for row, (slot, generation, number, flags, _, _, covered, frames) in enumerate(ticket.rows.tolist()):
        if slot >= 0:
            requests[row] = DecoderRequest(
                Lease(slot, generation), encoded[start : start + frames], covered, bool(flags & START),
                bool(flags & END), ticket.options.get(row), bool(flags & FINALIZE), number,
            )  # fmt: skip
        start += frames
    return requests
