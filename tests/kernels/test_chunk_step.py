"""The encoder step with kernels for attention and convolution is the one in PyTorch: frames, pages and tails."""

import pytest
import torch

from penstock.encoder.encoder import FUSED, TORCH, StreamingEncoder, fits_kernels
from penstock.graphs.program import EagerDriver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from tests.helpers.kernel_inputs import generator
from tests.helpers.random_models import random_checkpoint, random_encoder

SLOTS = 6
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Largest difference of frames, which end in a norm; as between two engines in tests/encoder/test_encoder.py."""
# Heads of 4 to 8 columns, several numbers of taps, with and without a norm after the convolution.
CASES = list(enumerate(((6, 0), (4, 1), (3, 2), (8, 3))))


def pair(checkpoint: Checkpoint, context: tuple, device: str, dtype=torch.float32) -> list[StreamingEncoder]:
    chosen = AttentionContext(*context)
    return [StreamingEncoder(checkpoint, chosen, SLOTS, device, dtype, engine) for engine in (TORCH, FUSED)]


def check(encoders: list[StreamingEncoder], chunks: int, device: str, tolerance: float) -> None:
    """Batches of streams of all ages, some of which end; a slot is used again."""
    draw, config = generator(1), encoders[0].config
    size = config.subsampling_factor * encoders[0].context.chunk_encoder_frames
    for number in range(chunks):
        rows = torch.randperm(SLOTS, generator=draw)[: 1 + number % SLOTS]
        mel = 3.0 * torch.randn(len(rows), size, config.mel_bins, generator=draw) - 6.0
        valid = torch.where(torch.rand(len(rows), generator=draw) < 0.2, size // 2 + 1, size)
        if number == chunks // 2:
            for encoder in encoders:
                encoder.open(rows[:1].to(device))
        expected, found = (encoder.step(*(t.to(device) for t in (rows, mel, valid))) for encoder in encoders)
        assert torch.equal(found.valid_encoder_frames, expected.valid_encoder_frames)
        for row, frames in enumerate(expected.valid_encoder_frames.tolist()):
            ours, theirs = (one.frames[row, :frames].float() for one in (found, expected))
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    reference, fused = (encoder.state for encoder in encoders)
    assert torch.equal(fused.chunks_seen[:SLOTS], reference.chunks_seen)
    states = ((fused.kv_pages[:, :SLOTS], reference.kv_pages), (fused.conv_tails[:, :SLOTS], reference.conv_tails))
    for ours, theirs in states:
        assert theirs.abs().max() > 0.1
        error = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        assert error <= tolerance


@torch.inference_mode()
@pytest.mark.parametrize(("seed", "context"), CASES)
def test_steps_of_any_network(kernel_device, tmp_path, seed, context):
    checkpoint = random_checkpoint(tmp_path, seed, random_encoder(seed))
    check(pair(checkpoint, context, kernel_device), 12, kernel_device, TOLERANCE[torch.float32])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("context", [(70, 0), (70, 1), (70, 13)])
def test_steps_of_the_bundled_model_in_16_bit(kernel_device, bundled_model, context, dtype):
    if kernel_device == "cpu" and (dtype == torch.bfloat16 or context == (70, 13)):
        pytest.skip("the interpreter is too slow, and cannot multiply bfloat16")
    chunks = 2 if kernel_device == "cpu" else 80
    check(pair(Checkpoint(bundled_model), context, kernel_device, dtype), chunks, kernel_device, TOLERANCE[dtype])


@torch.inference_mode()
def test_captured_steps_pad_with_one_spare_slot(kernel_device, tmp_path):
    """Rows of several padding streams write to it in any order."""
    checkpoint = random_checkpoint(tmp_path, 1, random_encoder(1))
    context = AttentionContext(4, 1)
    encoders = [
        StreamingEncoder(checkpoint, context, SLOTS, kernel_device, engine=engine, driver=driver)
        for engine, driver in ((TORCH, None), (FUSED, EagerDriver()))
    ]
    check(encoders, 4, kernel_device, TOLERANCE[torch.float32])


def test_what_has_no_room(bundled_model):
    config = Checkpoint(bundled_model).config.encoder
    assert fits_kernels(config, AttentionContext(70, 13)) and fits_kernels(config, AttentionContext(126, 1))
    assert not fits_kernels(config, AttentionContext(128, 1))
