"""The kernel that is tried before any other: interpreted on the CPU, compiled on a GPU."""

import torch

from penstock.kernels import blocks


def test_the_trial_passes(kernel_device):
    assert blocks.try_out(torch.device(kernel_device)) is None
