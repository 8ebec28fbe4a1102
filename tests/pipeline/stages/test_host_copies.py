"""The stages never wait for a device when they copy to it: every copy from the host is asynchronous.

No GPU is needed, because the calls that would wait can be told from their arguments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from penstock.errors import StreamError
from penstock.model.config import AttentionContext
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.slots.ticket import Ticket
from penstock.pipeline.stages.audio_rows import AudioRequest, rows_of
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from tests.helpers.golden import golden_samples

CONTEXT = AttentionContext(6, 1)


class WaitingCopies(TorchFunctionMode):
    """Lists the calls that copy values of the host to a device and wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function: Callable, types: Any, arguments: tuple = (), named: dict | None = None):
        named = named or {}
        places = [value for value in (*arguments[1:], named.get("device")) if isinstance(value, torch.device | str)]
        if function in (torch.tensor, torch.as_tensor) and "device" in named:
            self.found.append(function.__name__)
        if function is torch.Tensor.to and places and not named.get("non_blocking"):
            self.found.append("to")
        return function(*arguments, **named)


@pytest.mark.parametrize("copy", [lambda: torch.tensor([1], device="cpu"), lambda: torch.zeros(1).to("cpu")])
def test_a_waiting_copy_is_found(copy):
    with WaitingCopies() as copies:
        copy()
        torch.zeros(1).to(torch.int64)
        torch.zeros(1).to("cpu", non_blocking=True)
    assert len(copies.found) == 1


@pytest.mark.parametrize("name", ["greedy", "alsd", "ctc"])
def test_no_stage_waits_for_a_copy(golden_bundle, name):
    """A stream from its start to its end, with a segment's end in between."""
    checkpoint, slots = golden_bundle("rnnt_hybrid"), slot_count(2)
    ledger = SlotLedger(slots)
    features = FeatureStage(checkpoint, CONTEXT, StreamTable(2, ledger, 30.0))
    encoder = EncoderStage(checkpoint, CONTEXT, slots, ledger)
    decoder = DecoderStage(checkpoint, slots, ledger, context=CONTEXT)
    samples, tokens = golden_samples("medium").numpy(), 0
    requests = [
        AudioRequest("a", samples[:4000], is_start=True, options={"decoder": name}),
        AudioRequest("a", samples[4000:12000], finalize=True),
        AudioRequest("a", samples[12000:], is_end=True),
    ]
    with WaitingCopies() as copies:
        for request in requests:
            (reply,) = features.process_rows([rows_of([request])])
            assert not isinstance(reply, StreamError)
            ticket = Ticket(reply.rows, options=reply.options)
            (encoded,) = encoder.process_tickets([ticket], [reply.mel])
            (decoded,) = decoder.process_tickets([ticket], [encoded.encoded])
            tokens += len(decoded.answers[0].tokens)
    assert samples.dtype == np.float32 and tokens > 3
    assert copies.found == []
