"""Opens the transducer network of a checkpoint, by the checkpoint's kind."""

import torch

from penstock.decoding.factorized_network import FactorizedNetwork
from penstock.decoding.standard_network import StandardNetwork
from penstock.decoding.transducer import TransducerNetwork, head_of
from penstock.kernels.capability import AUTO
from penstock.model.bundle import Checkpoint


def open_network(
    checkpoint: Checkpoint,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: str = AUTO,
) -> TransducerNetwork:
    """The network of an RNN-T, TDT or factorized checkpoint; CheckpointError for one without a transducer.

    kernels: "auto", "torch" or "fused"; SettingError where "fused" is not possible.
    """
    if head_of(checkpoint).is_factorized:
        return FactorizedNetwork(checkpoint, device, dtype, kernels)
    return StandardNetwork(checkpoint, device, dtype, kernels)
