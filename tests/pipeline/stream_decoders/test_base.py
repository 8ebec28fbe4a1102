"""Truncation of beams is counted once, per segment and in total, and logged where there is any."""

import logging

import pytest
import torch

from penstock.decoding.sizes import BeamSizes
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stream_decoders import searches
from penstock.pipeline.stream_decoders.base import NO_TRUNCATION, TruncationCounters, TruncationLog
from tests.helpers.stage_requests import DecoderRequest, decode


@pytest.fixture(autouse=True)
def logged(caplog) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "penstock.pipeline.stream_decoders.base")
    return caplog


def test_totals_grow_by_what_is_new(logged):
    log = TruncationLog("alsd", 3)
    log.begin([0, 2])
    log.add(0, TruncationCounters(2, 0), is_final=False)
    log.add(2, NO_TRUNCATION, is_final=True)
    log.add(0, TruncationCounters(2, 3), is_final=False)
    log.add(0, TruncationCounters(2, 3), is_final=True)
    assert log.total == TruncationCounters(2, 3)
    log.begin([0])
    log.add(0, TruncationCounters(1, 0), is_final=True)
    assert log.total == TruncationCounters(3, 3)
    assert [record.args for record in logged.records] == [
        ("alsd", "2 forced blanks, 3 pruned hypotheses"),
        ("alsd", "1 forced blanks"),
    ]
    assert "alsd beam was truncated: 2 forced blanks, 3" in logged.messages[0]


@pytest.mark.parametrize("decoder", ["alsd", "aes"])
def test_a_stage_counts_what_its_beams_drop(golden_bundle, monkeypatch, logged, decoder):
    """With room for two labels a hypothesis; streams of the other beam decoder and of greedy search lose nothing."""
    monkeypatch.setattr(searches, "BeamSizes", lambda beam_size: BeamSizes(beam_size, 32, 2))
    checkpoint = golden_bundle("rnnt_hybrid")
    stage = DecoderStage(checkpoint, 3, SlotLedger(3), decoding=DecodingConfig(beam_size=8))
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(60, checkpoint.config.encoder.d_model, generator=generator) * 2

    def send(slot: int, some: slice, **more) -> None:
        (answer,) = decode(stage, [DecoderRequest(Lease(slot, 1), frames[some], 0, **more)])
        assert not isinstance(answer, Exception), answer

    send(0, slice(20), is_start=True, is_end=False, options=ResolvedOptions(decoder=decoder, beam_size=8))
    send(1, slice(20), is_start=True, is_end=True)
    first = stage.truncation
    send(0, slice(20, 60), is_start=False, is_end=True)
    assert stage.truncation.pruned_hypotheses > 0 and not first.pruned_hypotheses > stage.truncation[1]
    (record,) = logged.records
    assert record.args == (decoder, f"{stage.truncation.pruned_hypotheses} pruned hypotheses")
    before = stage.truncation
    send(2, slice(0), is_start=True, is_end=True, options=ResolvedOptions(decoder=decoder, beam_size=8))
    assert stage.truncation == before and len(logged.records) == 1
