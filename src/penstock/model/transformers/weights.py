"""Converts the safetensors of a Transformers model to the tensors of a bundle."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from penstock.errors import CheckpointError
from penstock.model.bundle import tensor_shapes
from penstock.model.config import ModelConfig
from penstock.model.mel_filterbank import hann_window, mel_filterbank
from penstock.model.source_tensors import (
    SourceTensor,
    StateDict,
    prompt_input,
    prompt_input_sources,
    source_shape,
    stored,
    take,
)
from penstock.model.transformers.files import WEIGHTS, weight_files

_ACCEPTED_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_LAYER_NAMES = {
    "feed_forward1.norm": "norm_feed_forward1",
    "feed_forward1.up": "feed_forward1.linear1",
    "feed_forward1.down": "feed_forward1.linear2",
    "feed_forward2.norm": "norm_feed_forward2",
    "feed_forward2.up": "feed_forward2.linear1",
    "feed_forward2.down": "feed_forward2.linear2",
    "attention.norm": "norm_self_att",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.position": "self_attn.relative_k_proj",
    "attention": "self_attn",
    "convolution.norm": "norm_conv",
    "convolution.pointwise1": "conv.pointwise_conv1",
    "convolution.pointwise2": "conv.pointwise_conv2",
    "convolution.depthwise": "conv.depthwise_conv",
    "convolution.depthwise_norm": "conv.norm",
    "norm_out": "norm_out",
}
_LAST_NAMES = {
    "position_bias_u": "bias_u",
    "position_bias_v": "bias_v",
    "input_weight": "weight_ih_l",
    "hidden_weight": "weight_hh_l",
    "input_bias": "bias_ih_l",
    "hidden_bias": "bias_hh_l",
}
_NAMES = {
    "encoder.subsampling.first": "encoder.subsampling.conv_in",
    "encoder.subsampling.out": "encoder.subsampling.linear",
    "predictor.embedding": "decoder.embedding",
    "joint.encoder": "encoder_projector",
    "joint.predictor": "decoder.decoder_projector",
    "joint.output": "joint.head",
    "prompt.out": "prompt_projector.linear_2",
}
_PROMPT_INPUT = "prompt_projector.linear_1"


def load_state_dict(directory: Path) -> StateDict:
    """Memory-maps the tensors of model.safetensors or its shards; the files must outlive the tensors.

    Raises CheckpointError for a broken file, a tensor of another type than F32, F16 and BF16, or one stored twice.
    """
    state: StateDict = {}
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path.name}: not a safetensors file, or truncated: {error}") from error
        for name, tensor in tensors.items():
            if tensor.dtype not in _ACCEPTED_TYPES:
                raise CheckpointError(f"{path.name}: tensor {name} is {tensor.dtype}; accepted: F32, F16, BF16")
            if name in state:
                raise CheckpointError(f"{path.name}: tensor {name} is in another shard, too")
        state |= tensors
    return state


def convert_state_dict(state: StateDict, config: ModelConfig, half: bool) -> StateDict:
    """Returns the tensors of `tensor_shapes(config)`: float32, or with `half` float16 except for `features.`.

    Raises CheckpointError with Transformers' name of a tensor that is missing, unexpected or has another shape.
    """
    remaining, features = dict(state), config.features
    tensors: StateDict = {
        "features.window": hann_window(features.window_samples),
        "features.mel_filterbank": mel_filterbank(features.sample_rate_hz, features.fft_samples, features.mel_bins),
    }
    tensors |= prompt_input(WEIGHTS, remaining, _PROMPT_INPUT, config)
    for name, shape in tensor_shapes(config).items():
        if name not in tensors:
            tensors[name] = take(WEIGHTS, remaining, source_of(name, shape)).reshape(shape)
    for name in remaining:
        raise CheckpointError(f"{WEIGHTS}: tensor {name} is not expected, one of {len(remaining)} such")
    return {name: stored(WEIGHTS, name, tensor, half, copy=False) for name, tensor in tensors.items()}


def sources_of(config: ModelConfig) -> list[SourceTensor]:
    """Every tensor of model.safetensors."""
    made = ("prompt.in.weight", "prompt.table")
    shapes = {
        name: shape
        for name, shape in tensor_shapes(config).items()
        if not name.startswith("features.") and name not in made
    }
    return [*prompt_input_sources(_PROMPT_INPUT, config), *(source_of(name, shape) for name, shape in shapes.items())]


def source_of(name: str, shape: tuple[int, ...]) -> SourceTensor:
    """The source of a bundle's tensor."""
    place, _, last = name.rpartition(".")
    parts = place.split(".")
    if place.startswith("encoder.layers."):
        source = f"{'.'.join(parts[:3])}.{_LAYER_NAMES['.'.join(parts[3:])]}"
    elif place.startswith("encoder.subsampling.") and parts[-1].isdigit():
        source = f"encoder.subsampling.layers.{parts[-1]}.{parts[-2]}_conv"
    elif place.startswith("predictor.lstm."):
        return SourceTensor(f"decoder.lstm.{_LAST_NAMES[last]}{parts[-1]}", shape)
    else:
        source = _NAMES[place]
    return SourceTensor(f"{source}.{_LAST_NAMES.get(last, last)}", source_shape(place, last, shape))
