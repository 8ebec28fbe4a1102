"""Initial tokenizer and weights for training, from a model that NeMo saved, of the same kind or a streaming one."""

import re
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel

from recipes.an4.demo_model import is_offline, write_tokenizer

_PARTS = ("encoder", "ctc_decoder", "decoder", "joint")
_STATISTICS = (".running_mean", ".running_var", ".num_batches_tracked")
_STEM = "pre_encode.conv.0"
_MELS = 200


class WarmStart:
    """A hybrid RNN-T/CTC model of the demonstration models' sizes, from a .nemo file."""

    def __init__(self, path: Path):
        self._path = path
        self._model = ASRModel.restore_from(str(path), map_location="cpu")

    @property
    def durations(self) -> tuple[int, ...]:
        """Durations that a TDT model predicts, in encoder frames; empty for an RNN-T."""
        return tuple(self._model.cfg.decoding.get("durations") or ())

    def write_tokenizer(self, directory: Path) -> Path:
        """Writes the tokenizer in NeMo's layout."""
        return write_tokenizer(self._model.tokenizer.tokenizer.serialized_model_proto(), directory)

    @torch.no_grad()
    def copy_to(self, model: torch.nn.Module, mels: list[np.ndarray]) -> None:
        """Copies the weights to `model`. The duration logits, which only a TDT model has, become 0. Batch norms of an
        offline model keep their statistics: a bundle's are folded into the convolutions.

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
        if is_offline(self._model):
            for layer in model.encoder.layers:
                layer.conv.batch_norm.momentum = 0.0


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


@torch.no_grad()
def offline_weights(streaming: torch.nn.Module, mels: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """A streaming encoder's weights by name, changed so that an offline encoder's layers give nearly its values.

    Feed-forward and attention stay. Convolutions and their norms keep what they have learned:

    - The first convolution gets weights for normalized features, of the mean and deviation of `mels`.
    - Causal padding of 2 and 1 has one bin more at the lower end of the spectrum, which has no place here. Frames are
      7 mel frames (70 ms) later.
    - A centered convolution has the causal one's last taps; those for what comes later begin as 0.
    - The batch norm gives each channel the mean and deviation that the layer norm gives it on `mels`.

    mels: log-mel frames [N, F] each, not normalized; the first 200 are used.
    """
    state = {name: values.clone() for name, values in streaming.state_dict().items()}
    values = np.concatenate(mels)
    mean, deviation = float(values.mean()), float(np.mean([mel.std(axis=0).mean() for mel in mels]))
    state[f"{_STEM}.bias"] += mean * state[f"{_STEM}.weight"].sum(dim=(1, 2, 3))
    state[f"{_STEM}.weight"] *= deviation
    channels = len(state[f"{_STEM}.bias"])
    projection = state["pre_encode.out.weight"]  # [D, channels * bins]
    state["pre_encode.out.weight"] = projection.unflatten(1, (channels, -1))[:, :, 1:].flatten(1)
    for index, (means, deviations) in enumerate(_norm_statistics(streaming, mels[:_MELS])):
        convolution = f"layers.{index}.conv"
        taps = state[f"{convolution}.depthwise_conv.weight"]  # [D, 1, K]
        later = taps.shape[2] // 2
        state[f"{convolution}.depthwise_conv.weight"] = torch.nn.functional.pad(taps[:, :, later:], (0, later))
        state[f"{convolution}.batch_norm.bias"], state[f"{convolution}.batch_norm.weight"] = means, deviations
    return state


def _norm_statistics(encoder: torch.nn.Module, mels: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and deviation [D] of what each layer's norm gives on these features."""
    outputs: list[list[torch.Tensor]] = [[] for _ in encoder.layers]
    hooks = [
        layer.conv.batch_norm.register_forward_hook(lambda module, inputs, output, found=found: found.append(output[0]))
        for layer, found in zip(encoder.layers, outputs, strict=True)
    ]
    encoder.eval()
    for mel in mels:
        encoder(audio_signal=torch.from_numpy(mel.T[None]), length=torch.tensor([len(mel)]))
    for hook in hooks:
        hook.remove()
    frames = [torch.cat(found) for found in outputs]  # [frames, D] each
    return [(values.mean(dim=0), values.std(dim=0)) for values in frames]
