"""Random encoders have the tensors of a checkpoint and make as many frames as asked for, all of them finite."""

import pytest
import torch

from penstock.benchmarking.encoder_run import EncoderRun, random_mel
from penstock.benchmarking.random_encoder import ENCODERS, EncoderSizes, RandomEncoder
from penstock.checkpoint import tensor_shapes
from penstock.config import AttentionContext, FeatureConfig, ModelConfig, TransducerConfig
from penstock.errors import CheckpointError

TINY, CONTEXT = EncoderSizes(2, 16, 2, 4), AttentionContext(8, 3)


def test_the_tensors_are_those_of_a_checkpoint():
    encoder = RandomEncoder(TINY, CONTEXT)
    features = FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24)
    shapes = tensor_shapes(ModelConfig(features, encoder.config.encoder, TransducerConfig(9, 5, 1, 7, "tanh", ())))
    expected = {name: shape for name, shape in shapes.items() if name.startswith("encoder.")}
    assert {name: tuple(tensor.shape) for name, tensor in encoder.tensors("encoder.").items()} == expected


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


def test_large_is_as_large_as_nemos():
    config = RandomEncoder(ENCODERS["large"], AttentionContext(70, 13)).config.encoder
    assert (config.n_layers, config.d_model, config.n_heads, config.conv_kernel_size) == (17, 512, 8, 9)
    assert (config.d_feed_forward, config.subsampling_channels, config.mel_bins) == (2048, 256, 80)


def test_a_context_that_no_encoder_can_have_is_refused():
    with pytest.raises(CheckpointError, match="att_context_size"):
        RandomEncoder(TINY, AttentionContext(7, 3))
