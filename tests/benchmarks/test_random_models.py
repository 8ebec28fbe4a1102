"""Random models have a checkpoint's tensors, are reproducible, and emit labels about as often as trained ones."""

import pytest

from benchmarks.random_models import (
    ALL_KINDS,
    ENCODER_FRAME_MS,
    LABELS_PER_SECOND,
    RandomCtc,
    RandomTransducer,
    TransducerSizes,
)
from penstock.decoding.ctc import CtcHead
from penstock.model.bundle import tensor_shapes
from penstock.model.config import FeatureConfig, ModelConfig
from tests.helpers.random_models import SMALL_ENCODER, with_encoder
from tests.helpers.reference.greedy import GreedyReference

SIZES = TransducerSizes(d_model=16, hidden=24, vocabulary_size=20)


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


def test_a_ctc_head_has_labels_as_in_speech():
    source = RandomCtc(TransducerSizes(d_model=64, hidden=0, vocabulary_size=200))
    frames = source.frames(8, 200)
    is_label = CtcHead(source).log_probs(frames).argmax(dim=2) != 200
    assert 0.5 * LABELS_PER_SECOND < float(is_label.float().mean()) * 1000 / ENCODER_FRAME_MS < 2 * LABELS_PER_SECOND
