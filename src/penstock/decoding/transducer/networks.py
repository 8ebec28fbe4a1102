"""Opens the transducer network of a checkpoint, by the checkpoint's kind."""

import torch

from penstock.decoding.transducer.factorized_network import FactorizedNetwork
from penstock.decoding.transducer.interface import TransducerNetwork, head_of
from penstock.decoding.transducer.standard_network import StandardNetwork
from penstock.errors import SettingError
from penstock.kernels.capability import AUTO, TORCH
from penstock.model.bundle import Checkpoint


def open_network(
    checkpoint: Checkpoint,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: str = AUTO,
) -> TransducerNetwork:
    """The network of an RNN-T, TDT or factorized checkpoint; CheckpointError for one without a transducer.

    kernels: "auto", "torch" or "fused"; SettingError where "fused" is not possible, and for 16 bits without it: PyTorch
    would round logits to them, and searches must not choose between rounded logits.
    """
    kind = FactorizedNetwork if head_of(checkpoint).is_factorized else StandardNetwork
    network = kind(checkpoint, device, dtype, kernels)
    if dtype in (torch.float16, torch.bfloat16) and network.kernels == TORCH:
        name = str(dtype).removeprefix("torch.")
        raise SettingError(f"a transducer in {name} needs fused kernels on its device; accepted: float32")
    return network
