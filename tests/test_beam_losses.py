"""What beams give up is counted once, by segment and in all, and told where there is anything to tell."""

import logging

import pytest
import torch

from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding_config import DecodingConfig
from penstock.slot_ledger import SlotLedger
from penstock.stages import decoder_searches
from penstock.stages.beam_losses import NO_LOSSES, BeamLossCount, BeamLosses
from penstock.stages.decoder import DecoderRequest, DecoderStage
from penstock.streams import Lease


@pytest.fixture(autouse=True)
def told(caplog) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "penstock.stages.beam_losses")
    return caplog


def test_totals_grow_by_what_is_new(told):
    count = BeamLossCount("alsd", 3)
    count.begin([0, 2])
    count.note(0, BeamLosses(2, 0), is_end=False)
    count.note(2, NO_LOSSES, is_end=True)
    count.note(0, BeamLosses(2, 3), is_end=False)
    count.note(0, BeamLosses(2, 3), is_end=True)
    assert count.total == BeamLosses(2, 3)
    count.begin([0])
    count.note(0, BeamLosses(1, 0), is_end=True)
    assert count.total == BeamLosses(3, 3)
    assert [record.args for record in told.records] == [("alsd", 2, 3), ("alsd", 1, 0)]
    assert "alsd beam" in told.messages[0] and "forced on by 2 encoder frames" in told.messages[0]


@pytest.mark.parametrize("decoder", ["alsd", "aes"])
def test_a_stage_counts_what_its_beams_drop(golden_bundle, monkeypatch, told, decoder):
    """With room for two labels a hypothesis; a stream in the other lane, and a greedy one, lose nothing."""
    monkeypatch.setattr(decoder_searches, "BeamSizes", lambda beam_size: BeamSizes(beam_size, 32, 2))
    checkpoint = golden_bundle("rnnt_hybrid")
    stage = DecoderStage(checkpoint, 3, SlotLedger(3), decoding=DecodingConfig(beam_size=8))
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(60, checkpoint.config.encoder.d_model, generator=generator) * 2

    def send(slot: int, some: slice, **more) -> None:
        (answer,) = stage.process([DecoderRequest(Lease(slot, 1), frames[some], 0, **more)])
        assert not isinstance(answer, Exception), answer

    send(0, slice(20), is_start=True, is_end=False, options={"decoder": decoder})
    send(1, slice(20), is_start=True, is_end=True)
    first = stage.beam_losses
    send(0, slice(20, 60), is_start=False, is_end=True)
    assert stage.beam_losses.dropped_hypotheses > 0 and not first.dropped_hypotheses > stage.beam_losses[1]
    (record,) = told.records
    assert record.args == (decoder, *stage.beam_losses)
    before = stage.beam_losses
    send(2, slice(0), is_start=True, is_end=True, options={"decoder": decoder})
    assert stage.beam_losses == before and len(told.records) == 1
