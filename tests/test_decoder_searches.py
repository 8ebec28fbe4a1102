"""A decoder's settings reach its searches, and do what they say."""

from itertools import pairwise

import pytest
import torch

from penstock.checkpoint import Checkpoint
from penstock.decoding.beam_sizes import AesLimits
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding_config import LM_FUSIONS, DecodingConfig
from penstock.fusion.blank_scoring import BlankScoring, FusionStrategy, Pruning
from penstock.graphs.driver import EagerDriver
from penstock.slot_ledger import SlotLedger
from penstock.stages import decoder_searches
from penstock.stages.decoder import DecoderRequest, DecoderStage
from penstock.stages.decoder_searches import SearchMaker, fusion_strategy
from penstock.stages.stream_text import StreamResult
from penstock.streams import Lease
from tests.random_models import random_checkpoint


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    return random_checkpoint(tmp_path, 2)


def test_the_papers_four_strategies():
    assert [fusion_strategy(name) for name in LM_FUSIONS] == [
        FusionStrategy(BlankScoring.LABELS_ONLY, Pruning.EARLY),
        FusionStrategy(BlankScoring.LABELS_ONLY, Pruning.LATE),
        FusionStrategy(BlankScoring.BLANK_TOO, Pruning.EARLY),
        FusionStrategy(BlankScoring.BLANK_TOO, Pruning.LATE),
    ]


def test_a_beam_search_gets_every_setting(checkpoint, monkeypatch):
    given = []
    real = decoder_searches.BeamSearch

    def make(network, algorithm, fusion, *rest):
        given.append((algorithm.value, *rest))
        return real(network, algorithm, fusion, *rest)

    monkeypatch.setattr(decoder_searches, "BeamSearch", make)
    chosen = DecodingConfig(
        lm_fusion="eq2-early", max_symbols=3, aes_expansions=1, aes_margin=4.5, aes_extra_labels=5,
        length_normalisation=False,
    )  # fmt: skip
    for decoding in (DecodingConfig(), chosen):
        SearchMaker(TransducerNetwork(checkpoint), decoding, EagerDriver(), 2, 7).beam("aes")
    assert given == [
        ("aes", FusionStrategy(), None, AesLimits(), True),
        ("aes", FusionStrategy(BlankScoring.LABELS_ONLY, Pruning.EARLY), 3, AesLimits(1, 4.5, 5), False),
    ]


def decoded(checkpoint: Checkpoint, decoding: DecodingConfig, options: dict) -> StreamResult:
    """A stream of 20 encoder frames."""
    frames = torch.randn(20, checkpoint.config.encoder.d_model, generator=torch.Generator().manual_seed(3))
    stage = DecoderStage(checkpoint, 1, SlotLedger(1), decoding=decoding)
    (result,) = stage.process([DecoderRequest(Lease(0, 1), frames, 0, True, True, options)])
    assert isinstance(result, StreamResult) and len(result.tokens) >= 5
    return result


def most_at_a_frame(result: StreamResult) -> int:
    frames = [token.timestamp for token in result.tokens]
    return max(map(frames.count, frames))


@pytest.mark.parametrize(
    ("decoder", "setting"), [("greedy", "max_symbols"), ("alsd", "max_symbols"), ("aes", "aes_expansions")]
)
def test_labels_at_a_frame(checkpoint, decoder, setting):
    options = {"decoder": decoder}
    assert most_at_a_frame(decoded(checkpoint, DecodingConfig(**{setting: 1}), options)) == 1
    assert most_at_a_frame(decoded(checkpoint, DecodingConfig(**{setting: 2}), options)) == 2


@pytest.mark.parametrize("is_normalised", [False, True])
def test_what_alternatives_are_ranked_by(checkpoint, is_normalised):
    decoding = DecodingConfig(beam_size=8, length_normalisation=is_normalised)
    found = decoded(checkpoint, decoding, {"decoder": "alsd", "n_best": 8}).alternatives
    assert len(found) == 8
    by_score = all(one.score >= other.score for one, other in pairwise(found))
    assert by_score is not is_normalised
