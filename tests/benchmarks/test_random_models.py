"""Random models have a checkpoint's tensors, are reproducible, and emit labels about as often as trained ones."""

import random

import pytest
import torch

from benchmarks.random_models import (
    ALL_KINDS,
    ENCODER_FRAME_MS,
    LABELS_PER_SECOND,
    EncoderSizes,
    RandomEncoder,
    RandomTransducer,
    SyntheticTokenizer,
    TransducerSizes,
)
from benchmarks.workload import EncoderRun, random_mel
from penstock.model.bundle import tensor_shapes
from penstock.model.config import AttentionContext, FeatureConfig, ModelConfig
from tests.helpers.random_models import SMALL_ENCODER, with_encoder
from tests.helpers.reference.greedy import GreedyReference

SIZES = TransducerSizes(d_model=16, hidden=24, vocabulary_size=20)
TINY, CONTEXT = EncoderSizes(2, 16, 2, 4), AttentionContext(8, 3)


@pytest.fixture(params=ALL_KINDS)
def kind(request) -> str:
    return request.param


def test_the_transducers_tensors_are_those_of_a_checkpoint(kind):
    source = RandomTransducer(kind, SIZES)
    features = FeatureConfig(16000, 400, 160, 512, SMALL_ENCODER.mel_bins, 0.97, 2**-24)
    encoder = with_encoder(SMALL_ENCODER, d_model=SIZES.d_model)
    shapes = tensor_shapes(ModelConfig(features, encoder, source.config.transducer))
    prefixes = ("predictor.", "joint.", "blank.", "acoustic.")
    expected = {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}
    assert {name: tuple(t.shape) for name, t in source.tensors(*prefixes).items()} == expected
    assert all(name.startswith("predictor.") for name in source.tensors("predictor."))
    assert source.config.transducer.is_tdt == (kind == "tdt")


def test_labels_come_about_as_often_as_in_speech(kind):
    source = RandomTransducer(kind, SIZES)
    reference = GreedyReference(source.config.transducer, source.tensors())
    streams, encoder_frames = 12, 60
    labels = sum(len(reference.decode(stream)) for stream in source.frames(streams, encoder_frames))
    per_second = labels / (streams * encoder_frames * ENCODER_FRAME_MS / 1000.0)
    assert 0.5 * LABELS_PER_SECOND < per_second < 2.0 * LABELS_PER_SECOND


@pytest.mark.parametrize("encoder_frames", [1, 4, 18])
def test_it_makes_the_frames_asked_for(encoder_frames):
    encoder = RandomEncoder(TINY, CONTEXT)
    mel = random_mel(encoder, 3, encoder_frames, "cpu")
    run = EncoderRun(encoder, CONTEXT, mel, "cpu")
    frames = run.encode(3)
    assert frames.shape == (3, encoder_frames, TINY.width)
    assert frames.isfinite().all() and 0.1 < frames.std() < 10
    torch.testing.assert_close(run.encode(3), frames)
    torch.testing.assert_close(run.encode(2), frames[:2])
    assert not torch.equal(frames[0], frames[1])


@pytest.mark.parametrize("size", [12, 1024])
def test_encoding_inverts_decoding(size):
    tokenizer, generator = SyntheticTokenizer(size), random.Random(0)
    for _ in range(50):
        tokens = [generator.randrange(1, size // 2) * 2 - 1, *generator.choices(range(1, size), k=5)]
        text = tokenizer.decode(tokens)
        assert tokenizer.encode(text) == tokens
        assert not text.startswith(" ")
