"""Random weights have the tensors of a checkpoint, are the same each time, and emit labels about as often as speech."""

import pytest
import torch

from penstock.benchmarking.random_transducer import ENCODER_FRAME_MS, KINDS, LABELS_PER_SECOND, RandomTransducer, Sizes
from penstock.checkpoint import tensor_shapes
from penstock.config import FeatureConfig, ModelConfig
from tests.random_models import SMALL_ENCODER, with_encoder
from tests.reference.greedy import GreedyReference

SIZES = Sizes(d_model=16, hidden=24, vocabulary_size=20)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


def test_the_tensors_are_those_of_a_checkpoint(kind):
    source = RandomTransducer(kind, SIZES)
    features = FeatureConfig(16000, 400, 160, 512, SMALL_ENCODER.mel_bins, 0.97, 2**-24)
    encoder = with_encoder(SMALL_ENCODER, d_model=SIZES.d_model)
    shapes = tensor_shapes(ModelConfig(features, encoder, source.config.transducer))
    expected = {name: shape for name, shape in shapes.items() if name.startswith(("predictor.", "joint."))}
    assert {name: tuple(t.shape) for name, t in source.tensors("predictor.", "joint.").items()} == expected
    assert all(name.startswith("joint.") for name in source.tensors("joint."))
    assert source.config.transducer.is_tdt == (kind == "tdt")


def test_the_seed_decides(kind):
    first, again, other = (RandomTransducer(kind, SIZES, seed) for seed in (1, 1, 2))
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, again.tensors()[name])
    assert not torch.equal(first.tensors()["joint.output.weight"], other.tensors()["joint.output.weight"])
    assert torch.equal(first.frames(2, 3), again.frames(2, 3))
    assert not torch.equal(first.frames(2, 3), first.frames(2, 3))


def test_labels_come_about_as_often_as_in_speech(kind):
    source = RandomTransducer(kind, SIZES)
    reference = GreedyReference(source.config.transducer, source.tensors())
    streams, encoder_frames = 12, 60
    labels = sum(len(reference.decode(stream)) for stream in source.frames(streams, encoder_frames))
    per_second = labels / (streams * encoder_frames * ENCODER_FRAME_MS / 1000.0)
    assert 0.5 * LABELS_PER_SECOND < per_second < 2.0 * LABELS_PER_SECOND
