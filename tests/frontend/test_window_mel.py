"""Log-mel of whole windows against the plain reference in float64, with and without normalization."""

import dataclasses

import pytest
import torch

from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import BLOCK_MEL_FRAMES, WindowMel, normalized
from penstock.model.config import FeatureConfig
from penstock.model.mel_filterbank import hann_window, mel_filterbank
from tests.helpers.reference.log_mel import log_mel_reference

PLAIN = FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24)
WINDOW, FILTERBANK = hann_window(400), mel_filterbank(16000, 512, 80)


def window_mel(is_normalized: bool) -> WindowMel:
    config = dataclasses.replace(PLAIN, is_normalized=is_normalized)
    return WindowMel(LogMel(config, WINDOW, FILTERBANK))


def noise(samples: int) -> torch.Tensor:
    """Loud at times, so that bins vary."""
    generator = torch.Generator().manual_seed(samples)
    envelope = 0.02 + 0.2 * torch.sin(torch.arange(samples) / 3000).clamp(min=0)
    return envelope * torch.randn(samples, generator=generator)


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 319, 320, 4967, 160 * BLOCK_MEL_FRAMES + 77])
def test_all_frames_are_the_reference(samples):
    reference = log_mel_reference(PLAIN, WINDOW, FILTERBANK, noise(samples))
    found = window_mel(False)(noise(samples))
    assert found.shape == (samples // 160, 80)
    assert ((found - reference.mel).abs() <= reference.rounding).all()


@pytest.mark.parametrize("samples", [320, 480, 4967, 160 * BLOCK_MEL_FRAMES + 77])
def test_normalized_bins_have_mean_0_and_deviation_1(samples):
    mel = log_mel_reference(PLAIN, WINDOW, FILTERBANK, noise(samples)).mel
    expected = (mel - mel.mean(dim=0)) / (mel.std(dim=0) + 1e-5)
    torch.testing.assert_close(window_mel(True)(noise(samples)), expected.float(), rtol=0, atol=1e-4)


def test_a_single_frame_becomes_zeros():
    assert torch.equal(window_mel(True)(noise(200)), torch.zeros(1, 80))


def test_a_silent_bin_stays_finite():
    assert torch.equal(normalized(torch.full((7, 3), -16.6)), torch.zeros(7, 3))
