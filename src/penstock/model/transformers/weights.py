"""Converts the safetensors of a Transformers model to the tensors of a bundle."""

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from penstock.errors import CheckpointError
from penstock.model.config import ModelConfig
from penstock.model.source_tensors import (
    LAYER_NAMES,
    LSTM_NAMES,
    NOT_NEEDED,
    SourceTensor,
    StateDict,
    convert_tensors,
    front_end_tensors,
    prompt_input,
    source_shape,
    stored,
)
from penstock.model.transformers.files import WEIGHTS, weight_files

_ACCEPTED_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_LAYER_NAMES = {
    **LAYER_NAMES,
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.position": "self_attn.relative_k_proj",
    "convolution.depthwise_norm": "conv.norm",
}
_LAST_NAMES = {**LSTM_NAMES, "position_bias_u": "bias_u", "position_bias_v": "bias_v"}
_NAMES = {
    "encoder.subsampling.first": "encoder.subsampling.conv_in",
    "encoder.subsampling.out": "encoder.subsampling.linear",
    "predictor.embedding": "decoder.embedding",
    "joint.encoder": "encoder_projector",
    "joint.predictor": "decoder.decoder_projector",
    "joint.output": "joint.head",
    "ctc": "ctc_head",
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
                names = [name for name in file.keys() if not NOT_NEEDED.fullmatch(name)]  # noqa: SIM118 - not a dict
                tensors = {name: file.get_tensor(name) for name in names}
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
    remaining = dict(state)
    known = front_end_tensors(config.features) | prompt_input(WEIGHTS, remaining, _PROMPT_INPUT, config)
    source = partial(source_of, is_offline=config.encoder.is_offline)
    tensors = convert_tensors(WEIGHTS, remaining, config, known, source, "norm")
    return {name: stored(WEIGHTS, name, tensor, half, copy=False) for name, tensor in tensors.items()}


def source_of(name: str, shape: tuple[int, ...], is_offline: bool) -> SourceTensor:
    """The source of a bundle's tensor; offline models number the layers of their subsampling as NeMo does."""
    place, _, last = name.rpartition(".")
    parts = place.split(".")
    if place.startswith("encoder.layers."):
        source = f"{'.'.join(parts[:3])}.{_LAYER_NAMES['.'.join(parts[3:])]}"
    elif place.startswith("encoder.subsampling.") and is_offline and parts[2] != "out":
        layer = 0 if parts[2] == "first" else (2 if "depthwise" in parts else 3) + 3 * int(parts[-1])
        source = f"encoder.subsampling.layers.{layer}"
    elif place.startswith("encoder.subsampling.") and parts[-1].isdigit():
        source = f"encoder.subsampling.layers.{parts[-1]}.{parts[-2]}_conv"
    elif place.startswith("predictor.lstm."):
        return SourceTensor(f"decoder.lstm.{_LAST_NAMES[last]}{parts[-1]}", shape)
    else:
        source = _NAMES[place]
    return SourceTensor(f"{source}.{_LAST_NAMES.get(last, last)}", source_shape(place, last, shape))
