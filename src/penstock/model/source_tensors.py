"""Takes each of a checkpoint's tensors once, checks it and converts it to the type of a bundle, for all importers.

Computes the analysis window and the mel filterbank of checkpoints that do not store them.
"""

import logging
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.errors import CheckpointError
from penstock.model.bundle import tensor_shapes
from penstock.model.config import FeatureConfig, ModelConfig

StateDict = dict[str, torch.Tensor]
NOT_NEEDED = re.compile(r".*\.num_batches_tracked")
"""Names of tensors that change nothing at inference."""
_IGNORED = re.compile(r"vad_head\..*")
"""Names of the tensors of a head beside those of recognition: Parakeet Ultra's, for voice activity."""
LAYER_NAMES = {
    "feed_forward1.norm": "norm_feed_forward1",
    "feed_forward1.up": "feed_forward1.linear1",
    "feed_forward1.down": "feed_forward1.linear2",
    "feed_forward2.norm": "norm_feed_forward2",
    "feed_forward2.up": "feed_forward2.linear1",
    "feed_forward2.down": "feed_forward2.linear2",
    "attention.norm": "norm_self_att",
    "attention": "self_attn",
    "convolution.norm": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_conv1",
    "convolution.pointwise2": "conv.pointwise_conv2",
    "convolution.depthwise": "conv.depthwise_conv",
    "norm_out": "norm_out",
}
"""Parts of an encoder layer in a bundle, and their names in NeMo and in Transformers."""
LSTM_NAMES = {
    "input_weight": "weight_ih_l",
    "hidden_weight": "weight_hh_l",
    "input_bias": "bias_ih_l",
    "hidden_bias": "bias_hh_l",
}
"""Tensors of an LSTM layer in a bundle, and the beginning of their names in torch."""
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
_BATCH_NORM_EPSILON = 1e-5  # the default of torch, NeMo and Transformers

_log = logging.getLogger(__name__)
_HZ_PER_MEL = 200.0 / 3.0
_LOGARITHMIC_FROM_HZ = 1000.0
_LOGARITHMIC_FROM_MEL = _LOGARITHMIC_FROM_HZ / _HZ_PER_MEL
_LOG_HZ_PER_MEL = math.log(6.4) / 27.0


class SourceTensor(NamedTuple):
    """Name and shape of a tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]


def take(file: str, remaining: StateDict, source: SourceTensor) -> torch.Tensor:
    """Removes one tensor from `remaining`; raises CheckpointError if it is missing or has another shape or type."""
    tensor = remaining.pop(source.name, None)
    if tensor is None:
        raise CheckpointError(f"{file}: tensor {source.name} is missing, expected with shape {source.shape}")
    if tuple(tensor.shape) != source.shape or not tensor.is_floating_point():
        raise CheckpointError(
            f"{file}: tensor {source.name} is {tensor.dtype} {tuple(tensor.shape)}, expected floating {source.shape}"
        )
    return tensor


def reject_rest(file: str, remaining: StateDict) -> None:
    """Raises CheckpointError for a tensor that no part of the model has taken; a head for voice activity is logged."""
    unknown = [name for name in remaining if not NOT_NEEDED.fullmatch(name) and not _IGNORED.fullmatch(name)]
    if unknown:
        raise CheckpointError(f"{file}: tensor {unknown[0]} is not expected, one of {len(unknown)} such")
    if ignored := [name for name in remaining if _IGNORED.fullmatch(name)]:
        _log.warning("%s: %d tensors vad_head.* are ignored: a head for voice activity", file, len(ignored))


def prompt_input_sources(place: str, config: ModelConfig) -> tuple[SourceTensor, ...]:
    """Weight and bias of the first layer of the language prompts, `place`; none for a model without prompts."""
    if config.prompt is None:
        return ()
    inputs, hidden = config.encoder.d_model + config.prompt.prompts, config.prompt.hidden
    return SourceTensor(f"{place}.weight", (hidden, inputs)), SourceTensor(f"{place}.bias", (hidden,))


def prompt_input(file: str, remaining: StateDict, place: str, config: ModelConfig) -> StateDict:
    """The first layer of the language prompts, `place`, as the weight of the frame and one row for each prompt.

    The row is the prompt's column and the bias, which are always added together. Empty for a model without prompts.
    """
    sources, width = prompt_input_sources(place, config), config.encoder.d_model
    if not sources:
        return {}
    weight, bias = (take(file, remaining, source) for source in sources)
    table = weight[:, width:].t().float() + bias.float()
    return {"prompt.in.weight": weight[:, :width], "prompt.table": table}


def convert_tensors(
    file: str,
    remaining: StateDict,
    config: ModelConfig,
    known: StateDict,
    source_of: Callable[[str, tuple[int, ...]], SourceTensor],
    norm: str,
) -> StateDict:
    """The tensors of `tensor_shapes(config)`: those that are `known`, and all `remaining` ones of a checkpoint.

    source_of: the source of a bundle's tensor by its name and shape; norm: the checkpoint's name of the batch norms.
    """
    tensors = dict(known)
    for name, shape in tensor_shapes(config).items():
        if name in tensors:
            continue
        source = source_of(name, shape)
        if name.endswith("convolution.depthwise.weight") and not config.encoder.has_conv_layer_norm:
            tensors |= _folded_depthwise(file, remaining, name, source, norm, config.encoder.use_bias)
        else:
            tensors[name] = take(file, remaining, source).reshape(shape)
    reject_rest(file, remaining)
    return tensors


def _folded_depthwise(
    file: str, remaining: StateDict, name: str, source: SourceTensor, norm: str, use_bias: bool
) -> StateDict:
    """Weight `name` and bias of a depthwise convolution with the batch norm after it.

    source: of the weight; norm: the checkpoint's name of the batch norm, beside `depthwise_conv`.
    """
    width, taps = source.shape[0], source.shape[-1]
    weight = take(file, remaining, source).reshape(width, taps).double()
    convolution = source.name.removesuffix(".weight")
    bias = torch.zeros(width)
    if use_bias:
        bias = take(file, remaining, SourceTensor(f"{convolution}.bias", (width,)))
    place = convolution.replace("depthwise_conv", norm)
    scale, shift, mean, variance = (
        take(file, remaining, SourceTensor(f"{place}.{part}", (width,))).double() for part in BATCH_NORM
    )
    factor = scale / torch.sqrt(variance + _BATCH_NORM_EPSILON)
    return {
        name: weight * factor[:, None],
        name.removesuffix("weight") + "bias": (bias.double() - mean) * factor + shift,
    }


def source_shape(place: str, last: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in a checkpoint of a bundle's tensor: one-wide convolutions keep their kernel axes there."""
    if last != "weight":
        return shape
    if place.startswith("encoder.subsampling.pointwise."):
        return (*shape, 1, 1)
    if place == "ctc" or place.endswith(("convolution.pointwise1", "convolution.pointwise2")):
        return (*shape, 1)
    if place.endswith("convolution.depthwise"):
        return (shape[0], 1, shape[1])
    return shape


def stored(file: str, name: str, tensor: torch.Tensor, half: bool, copy: bool) -> torch.Tensor:
    """Returns a tensor as a bundle stores it, with `copy` always a copy; raises CheckpointError if it is not finite."""
    is_half = half and not name.startswith("features.")
    result = tensor.to(torch.float16 if is_half else torch.float32, copy=copy).contiguous()
    if not bool(torch.isfinite(result).all()):
        cause = (
            "has values beyond the range of float16"
            if is_half and bool(torch.isfinite(tensor).all())
            else "is not finite"
        )
        raise CheckpointError(f"{file}: the tensor for {name} {cause}")
    return result


def front_end_tensors(features: FeatureConfig) -> dict[str, torch.Tensor]:
    """The tensors `features.` of a checkpoint that does not store them."""
    return {
        "features.window": hann_window(features.window_samples),
        "features.mel_filterbank": mel_filterbank(features.sample_rate_hz, features.fft_samples, features.mel_bins),
    }


def hann_window(samples: int) -> torch.Tensor:
    """Returns a symmetric Hann window [samples] float32, zero at both ends."""
    return torch.hann_window(samples, periodic=False)


def mel_filterbank(
    sample_rate_hz: int, fft_samples: int, mel_bins: int, lowest_hz: float = 0.0, highest_hz: float | None = None
) -> torch.Tensor:
    """Returns triangles of area one on Slaney's mel scale, [mel_bins, fft_samples // 2 + 1] float32."""
    highest_hz = highest_hz or sample_rate_hz / 2
    edges_mel = torch.linspace(_mel(lowest_hz), _mel(highest_hz), mel_bins + 2, dtype=torch.float64)
    edges_hz = _hz(edges_mel)  # [mel_bins + 2]
    bin_hz = torch.arange(fft_samples // 2 + 1, dtype=torch.float64) * (sample_rate_hz / fft_samples)
    distance = edges_hz[:, None] - bin_hz[None, :]
    width = edges_hz.diff()[:, None]
    rising, falling = -distance[:-2] / width[:-1], distance[2:] / width[1:]
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    # Rounded before the scaling too, like the filterbanks that checkpoints were trained with.
    return (triangles.float().double() * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).float()


def _mel(hz: float) -> float:
    if hz < _LOGARITHMIC_FROM_HZ:
        return hz / _HZ_PER_MEL
    return _LOGARITHMIC_FROM_MEL + math.log(hz / _LOGARITHMIC_FROM_HZ) / _LOG_HZ_PER_MEL


def _hz(mel: torch.Tensor) -> torch.Tensor:
    logarithmic = _LOGARITHMIC_FROM_HZ * torch.exp(_LOG_HZ_PER_MEL * (mel - _LOGARITHMIC_FROM_MEL))
    return torch.where(mel < _LOGARITHMIC_FROM_MEL, mel * _HZ_PER_MEL, logarithmic)
