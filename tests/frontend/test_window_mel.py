"""Log-mel of whole windows against the plain reference in float64, with and without normalization."""

import dataclasses

import pytest
import torch

from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import PIECE_MEL_FRAMES, BinSums, WindowMel
from penstock.model.config import FeatureConfig
from penstock.model.source_tensors import hann_window, mel_filterbank
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


@pytest.mark.parametrize("samples", [0, 1, 159, 160, 161, 319, 320, 4967, 160 * PIECE_MEL_FRAMES + 77])
def test_all_frames_are_the_reference(samples):
    reference = log_mel_reference(PLAIN, WINDOW, FILTERBANK, noise(samples))
    found = window_mel(False)(noise(samples))
    assert found.shape == (samples // 160, 80)
    assert ((found - reference.mel).abs() <= reference.rounding).all()


@pytest.mark.parametrize("samples", [320, 480, 4967, 160 * PIECE_MEL_FRAMES + 77])
def test_normalized_bins_have_mean_0_and_deviation_1(samples):
    mel = log_mel_reference(PLAIN, WINDOW, FILTERBANK, noise(samples)).mel
    expected = (mel - mel.mean(dim=0)) / (mel.std(dim=0) + 1e-5)
    torch.testing.assert_close(window_mel(True)(noise(samples)), expected.float(), rtol=0, atol=1e-4)


def test_a_single_frame_becomes_zeros():
    assert torch.equal(window_mel(True)(noise(200)), torch.zeros(1, 80))


def test_a_silent_bin_has_deviation_0():
    sums = BinSums(3)
    for frames in (7, 1):
        sums.add(torch.full((frames, 3), -16.6))
    mean, deviation = sums.mean_and_deviation()
    assert torch.equal(mean, torch.full((3,), -16.6))
    assert torch.equal(deviation, torch.zeros(3))


@pytest.mark.parametrize("sizes", [[160], [1, 199, 1, 5000, 0], [480_000], [7, 333_333]])
def test_frames_do_not_depend_on_how_samples_are_cut(sizes):
    mel, samples = window_mel(True), noise(350_000)
    window, begin = mel.open(), 0
    while begin < len(samples):
        for size in sizes:
            window.add(samples[begin : begin + size])
            begin += size
    window.end()
    pieces = [window.take() for _ in range(window.pieces_left)]
    assert [len(piece) for piece in pieces] == [PIECE_MEL_FRAMES, 350_000 // 160 - PIECE_MEL_FRAMES]
    assert (window.samples, window.mel_frames) == (350_000, 350_000 // 160)
    torch.testing.assert_close(torch.cat(pieces), mel(samples), rtol=0, atol=1e-5)
