"""Rows of tickets: those that were forwarded, in order, with their options, and the way back to their tickets."""

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.slots.ticket import END, FINALIZE, NO_ROW, START, Ticket
from penstock.pipeline.stages.decoder_rows import rows_of_tickets

WIDTH = 3


def ticket_row(slot: int, flags: int, frames: int) -> list[int]:
    return [slot, 10 + slot, 20 + slot, flags, 1, 7, 100 + slot, frames]


def test_rows_of_tickets_without_those_that_the_features_stage_rejected():
    options = [ResolvedOptions(decoder="alsd", beam_size=2, n_best=number) for number in (1, 2)]
    direct = Ticket(np.array([ticket_row(4, START, 2)]), options={0: options[0]})
    error = StreamError(ErrorCode.STREAM_LIMIT, "full")
    batched = Ticket(
        np.array([ticket_row(5, 0, 1), NO_ROW, ticket_row(6, START | END, 0), ticket_row(5, FINALIZE, 3)]),
        is_batched=True,
        options={2: options[1]},
        errors={1: error},
    )
    encoded = [torch.rand(2, WIDTH), torch.rand(4, WIDTH)]
    rows, ticket_of, row_of = rows_of_tickets([direct, batched], encoded, 8)
    assert rows.slots.tolist() == [4, 5, 6, 5]
    assert rows.generations.tolist() == [14, 15, 16, 15]
    assert rows.numbers.tolist() == [24, 25, 26, 25]
    assert rows.flags.tolist() == [START, 0, START | END, FINALIZE]
    assert rows.covered_samples.tolist() == [104, 105, 106, 105]
    assert rows.frames.tolist() == [2, 1, 0, 3]
    assert torch.equal(rows.encoded, torch.cat(encoded))
    assert rows.options == {0: options[0], 2: options[1]}
    assert rows.wants_result.tolist() == [True, False, False, False]
    assert list(zip(ticket_of.tolist(), row_of.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 2), (1, 3)]
