"""A decoder's settings reach its searches, and do what they say."""

from itertools import pairwise

import pytest
import torch

from penstock.decoding.beam.sizes import AesLimits
from penstock.decoding.transducer.networks import open_network
from penstock.graphs.driver import EagerDriver
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import LM_FUSIONS, DecodingConfig
from penstock.pipeline.options.offers import DecoderOffer
from penstock.pipeline.options.stream_options import parse_stream_options
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stream_decoders import searches
from penstock.pipeline.stream_decoders.searches import SearchFactory, fusion_strategy
from penstock.scoring.fusion_rules import BlankScoring, FusionStrategy, Pruning
from tests.helpers.random_models import random_checkpoint
from tests.helpers.stage_requests import DecoderRequest, decode


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
    real = searches.BeamSearch

    def make(network, algorithm, fusion, *rest):
        given.append((algorithm.value, *rest))
        return real(network, algorithm, fusion, *rest)

    monkeypatch.setattr(searches, "BeamSearch", make)
    chosen = DecodingConfig(
        lm_fusion="eq2-early", max_symbols=3, aes_expansions=1, aes_margin=4.5, aes_extra_labels=5,
        length_normalization=False, ctc_beam_label_bonus=2.0,
    )  # fmt: skip
    for decoding in (DecodingConfig(), chosen):
        SearchFactory(decoding, EagerDriver(), 2, 7).beam(open_network(checkpoint), "aes")
    assert given == [
        ("aes", FusionStrategy(), None, AesLimits(), True, 1.5),
        ("aes", FusionStrategy(BlankScoring.LABELS_ONLY, Pruning.EARLY), 3, AesLimits(1, 4.5, 5), False, 2.0),
    ]


def decoded(checkpoint: Checkpoint, decoding: DecodingConfig, options: dict) -> StreamResult:
    """A stream of 20 encoder frames."""
    frames = torch.randn(20, checkpoint.config.encoder.d_model, generator=torch.Generator().manual_seed(3))
    stage = DecoderStage(checkpoint, 1, SlotLedger(1), decoding=decoding)
    parsed = parse_stream_options(options, decoding, Tokenizer(checkpoint.tokenizer_path), DecoderOffer({}))
    (result,) = decode(stage, [DecoderRequest(Lease(0, 1), frames, 0, True, True, parsed)])
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


@pytest.mark.parametrize("is_normalized", [False, True])
def test_what_alternatives_are_ranked_by(checkpoint, is_normalized):
    decoding = DecodingConfig(beam_size=8, length_normalization=is_normalized)
    found = decoded(checkpoint, decoding, {"decoder": "alsd", "n_best": 8}).alternatives
    assert len(found) == 8
    by_score = all(one.score >= other.score for one, other in pairwise(found))
    assert by_score is not is_normalized
