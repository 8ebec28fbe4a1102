"""A decoder's settings reach its searches; each stream of a batch decodes as it would alone."""

import random

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import DecoderOffer
from penstock.pipeline.options.stream_options import parse_stream_options
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.decoder import DecoderStage
from tests.helpers.decoding_graphs import write_text_lm
from tests.helpers.golden import golden_samples
from tests.helpers.random_models import random_checkpoint
from tests.helpers.recognition import Transcription, recognize_together
from tests.helpers.stage_requests import DecoderRequest, decode


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    return random_checkpoint(tmp_path, 2)


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


@pytest.mark.parametrize("decoder", ["greedy", "alsd"])
def test_labels_at_a_frame(checkpoint, decoder):
    for most in (1, 2):
        found = decoded(checkpoint, DecodingConfig(max_symbols=most), {"decoder": decoder})
        assert most_at_a_frame(found) == most


NAMES = ("rnnt_hybrid", "tdt_hybrid")
CHOICES = (
    {},
    {"decoder": "alsd"},
    {"decoder": "aes", "beam_size": 2},
    {"lm_weight": 0.8},
    {"decoder": "alsd", "lm_weight": 0.5, "beam_size": 3, "n_best": 3},
    {"boosted_phrases": [["seven", 4.0], ["zero", 3.0]]},
    {"decoder": "alsd", "boosted_phrases": '["erase", "help"]', "boost": 4.0, "n_best": 1},
    {"decoder": "aes", "boosted_phrases": ["yes"], "lm_weight": 0.4},
    {"decoder": "alsd", "beam_size": 1},
    {"decoder": "ctc"},
    {"decoder": "ctc_beam", "lm_weight": 0.5, "boosted_phrases": ["yes"], "n_best": 2},
)


@pytest.fixture(scope="module", params=NAMES)
def recognizer(request, golden_bundle, tmp_path_factory) -> StreamingRecognizer:
    """With a language model; no stream is open."""
    checkpoint = golden_bundle(request.param)
    path = tmp_path_factory.mktemp("lm") / "words.arpa"
    sentences = ["seven two nine erase", "help start stop", "yes no go zero", "seven zero seven"] * 3
    write_text_lm(path, checkpoint.tokenizer_path, sentences)
    return StreamingRecognizer(checkpoint.directory, max_streams=16, decoding=DecodingConfig(lm=str(path)))


def recognized(recognizer, samples, options, parts=(slice(None),)) -> Transcription:
    with recognizer.open_stream(options=options) as stream:
        return Transcription([*(stream.push(samples[part]) for part in parts), stream.finish()])


def outcome(one: Transcription) -> tuple:
    last = one.results[-1]
    return one.outcome, [alternative.text for alternative in last.alternatives]


def test_streams_of_a_batch_choose_for_themselves(recognizer):
    chance = random.Random(7)
    samples = golden_samples("medium").numpy()
    signals = [samples[chance.randint(0, 3000) :] for _ in CHOICES]
    alone = [recognized(recognizer, signal, options) for signal, options in zip(signals, CHOICES, strict=True)]
    together = recognize_together(recognizer, signals, chance, options=CHOICES)
    assert list(map(outcome, together)) == list(map(outcome, alone))
    assert len({str(outcome(one)) for one in alone}) > 3  # the choices do make a difference


def test_a_reopened_slot_forgets_the_last_choice(recognizer):
    samples = golden_samples("short").numpy()
    fresh = recognized(recognizer, samples, {})
    for options in CHOICES:
        for _ in range(2 * recognizer.table.slots // len(CHOICES) + 1):
            recognized(recognizer, samples, options)
        assert outcome(recognized(recognizer, samples, {})) == outcome(fresh)


def test_alternatives_are_ranked_and_differ(recognizer):
    results = recognized(recognizer, golden_samples("medium").numpy(), {"decoder": "alsd", "n_best": 4}).results
    result = results[-1]
    texts = [alternative.text for alternative in result.alternatives]
    assert texts[0] == result.text and len(texts) > 1
    assert all(np.isfinite(alternative.score) for alternative in result.alternatives)
    assert result.alternatives[0].words == tuple(word for each in results for word in each.words)
    assert all(" ".join(word.text for word in one.words) == one.text for one in result.alternatives)
