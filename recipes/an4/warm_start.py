"""Initial tokenizer and weights for training, from a model that NeMo saved."""

import re
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel

from recipes.an4.demo_model import is_offline, write_tokenizer
from recipes.an4.offline_start import offline_weights

_PARTS = ("encoder", "ctc_decoder", "decoder", "joint")
_STATISTICS = (".running_mean", ".running_var", ".num_batches_tracked")


class WarmStart:
    """A hybrid RNN-T/CTC model of the demonstration models' sizes, from a .nemo file."""

    def __init__(self, path: Path):
        self._path = path
        self._model = ASRModel.restore_from(str(path), map_location="cpu")

    @property
    def durations(self) -> tuple[int, ...]:
        """Of a TDT model, in encoder frames; empty for an RNN-T."""
        return tuple(self._model.cfg.decoding.get("durations") or ())

    def write_tokenizer(self, directory: Path) -> Path:
        """Writes the tokenizer in NeMo's layout."""
        return write_tokenizer(self._model.tokenizer.tokenizer.serialized_model_proto(), directory)

    @torch.no_grad()
    def copy_to(self, model: torch.nn.Module, mels: list[np.ndarray]) -> None:
        """Copies the weights to `model`. The duration logits, which only a TDT model has, become 0.

        mels: log-mel frames [N, F] each, for an offline model that begins as a streaming one (`offline_start`).
        Raises ValueError for a weight of another shape.
        """
        becomes_offline = is_offline(model) and not is_offline(self._model)
        for part in _PARTS:
            weights = getattr(self._model, part).state_dict()
            if part == "encoder" and becomes_offline:
                weights = offline_weights(self._model.encoder, mels)
            source = {_place(name): values for name, values in weights.items()}
            for name, values in getattr(model, part).state_dict().items():
                if becomes_offline and name.endswith(_STATISTICS):
                    continue
                if _place(name) not in source:
                    raise ValueError(f"{self._path}: no weight {part}.{name}")
                is_output = part == "joint" and name.startswith("joint_net.")
                _copy(source[_place(name)], values, f"{self._path}: {part}.{name}", is_output)


def _place(name: str) -> str:
    """A weight's name without the index of the joint's last layer, which depends on dropout."""
    return re.sub(r"^joint_net\.\d+\.", "joint_net.", name)


def _copy(source: torch.Tensor, target: torch.Tensor, name: str, may_have_more_rows: bool) -> None:
    rows = len(source) if source.ndim else 0
    if source.shape[1:] != target.shape[1:] or not (
        source.shape == target.shape or (may_have_more_rows and rows < len(target))
    ):
        raise ValueError(f"{name} is {tuple(source.shape)}, expected {tuple(target.shape)}")
    if source.shape == target.shape:
        target.copy_(source)
    else:
        target.zero_()[:rows] = source
