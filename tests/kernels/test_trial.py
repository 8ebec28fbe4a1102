"""The kernel that is tried before any other: interpreted on the CPU, compiled on a GPU."""

import torch

from penstock.kernels import trial


def test_the_trial_passes(kernel_device):
    assert trial.try_out(torch.device(kernel_device)) is None
