"""Offline models for tests: golden NeMo checkpoints with the encoder of one, and random bundles."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig
from penstock.model.nemo.importer import import_nemo
from tests.helpers.nemo_files import CONFIG, WEIGHTS, nemo_members, nemo_state, saved, write_nemo
from tests.helpers.random_models import random_encoder

OFFLINE = {
    "att_context_style": "regular",
    "att_context_size": [-1, -1],
    "causal_downsampling": False,
    "conv_context_size": None,
}
"""What differs in the section `encoder` of an offline model's configuration."""
_OUT = "encoder.pre_encode.out.weight"


def random_offline_encoder(seed: int) -> EncoderConfig:
    """As `random_encoder`, without contexts and with an odd kernel."""
    causal = random_encoder(seed)
    return replace(causal, contexts=(), conv_kernel_size=causal.conv_kernel_size // 2 * 2 + 1)


def offline_document(case: str = "rnnt_hybrid") -> dict:
    """model_config.yaml of a golden checkpoint, changed to that of an offline model."""
    document = yaml.safe_load(nemo_members(case)[CONFIG])
    document["encoder"] |= OFFLINE
    document["preprocessor"]["normalize"] = "per_feature"
    return document


def offline_state(case: str = "rnnt_hybrid") -> dict[str, torch.Tensor]:
    """Its tensors; the offline subsampling has one bin less in the end."""
    document, state = offline_document(case), nemo_state(case)
    bins = document["encoder"]["feat_in"] // document["encoder"]["subsampling_factor"]
    width = document["encoder"]["d_model"]
    channels = document["encoder"]["subsampling_conv_channels"]
    state[_OUT] = state[_OUT].view(width, channels, -1)[:, :, :bins].flatten(1).clone()
    return state


def write_offline_nemo(
    path: Path,
    case: str = "rnnt_hybrid",
    change: Callable[[dict], object] = lambda document: None,
    change_state: Callable[[dict], object] = lambda state: None,
) -> Path:
    """A .nemo of a golden checkpoint as an offline model; `change` and `change_state` modify it in place."""
    document, state = offline_document(case), offline_state(case)
    change(document)
    change_state(state)
    changed = {CONFIG: yaml.safe_dump(document).encode(), WEIGHTS: saved(state)}
    return write_nemo(path, nemo_members(case) | changed)


def offline_bundle(directory: Path, case: str = "rnnt_hybrid") -> Checkpoint:
    """Its bundle; the joint is as that of the golden one, so a few frames have labels."""
    return import_nemo(write_offline_nemo(directory / f"{case}.nemo", case), directory / case)
