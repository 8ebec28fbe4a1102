"""Takes from the tensors what the configuration of an older NeMo checkpoint leaves out."""

from dataclasses import replace

import torch

from penstock.errors import CheckpointError
from penstock.model.nemo.config import JOINTNET, PREDNET, USE_BIAS, NemoConfig
from penstock.model.section import MAX_LAYERS
from penstock.model.source_tensors import StateDict

_EMBEDDING = "decoder.prediction.embed.weight"
_LSTM = "decoder.prediction.dec_rnn.lstm.weight_ih_l{}"
_JOINT = "joint.enc.weight"
_JOINT_OUTPUT_AFTER_DROPOUT = "joint.joint_net.2.weight"
_BIAS = "encoder.layers.0.self_attn.linear_q.bias"


def settled(config: NemoConfig, state: StateDict) -> NemoConfig:
    """Returns the configuration with biases, and sizes of an empty `prednet` or `jointnet`, as the tensors have them.

    Raises CheckpointError with NeMo's name of a tensor that is missing.
    """
    model = config.model
    if USE_BIAS in config.unsettled:
        model = replace(model, encoder=replace(model.encoder, use_bias=_BIAS in state))
    transducer = model.transducer
    if transducer is not None and PREDNET in config.unsettled:
        layers = next(layer for layer in range(MAX_LAYERS + 1) if _LSTM.format(layer) not in state)
        transducer = replace(
            transducer, predictor_hidden=_width(state, _EMBEDDING, axis=1), predictor_layers=max(layers, 1)
        )
    if transducer is not None and JOINTNET in config.unsettled:
        transducer = replace(transducer, joint_hidden=_width(state, _JOINT, axis=0))
        config = config._replace(joint_has_dropout=_JOINT_OUTPUT_AFTER_DROPOUT in state)
    return config._replace(model=replace(model, transducer=transducer))


def _width(state: StateDict, name: str, axis: int) -> int:
    tensor = state.get(name)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or not tensor.shape[axis]:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise CheckpointError(f"the tensor {name} is {found}, expected two axes")
    return tensor.shape[axis]
