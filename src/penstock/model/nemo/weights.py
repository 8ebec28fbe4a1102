"""Converts NeMo's pickled state dict to the tensors of a bundle; executes nothing of the pickle."""

import contextlib
import logging
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from penstock.errors import CheckpointError
from penstock.model.config import FeatureConfig
from penstock.model.nemo.archive import HeaderReader
from penstock.model.nemo.config import MelBand, NemoConfig
from penstock.model.source_tensors import (
    LAYER_NAMES,
    LSTM_NAMES,
    SourceTensor,
    StateDict,
    convert_tensors,
    hann_window,
    mel_filterbank,
    prompt_input,
    source_shape,
    stored,
    take,
)

_WEIGHTS = "model_weights.ckpt"
_PICKLE = "data.pkl"
MAX_PICKLE_BYTES, MAX_PICKLE_OPCODES = 8 << 20, 1_000_000
"""Limits of tensors' names. Each takes some 30 opcodes and 300 bytes; known checkpoints have up to 2,500 tensors."""
_COPY_BYTES = 1 << 20
_log = logging.getLogger(__name__)
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError,
    AssertionError, OverflowError, struct.error, OSError,
)  # fmt: skip

_LAYER_NAMES = {
    **LAYER_NAMES,
    "attention.query": "self_attn.linear_q",
    "attention.key": "self_attn.linear_k",
    "attention.value": "self_attn.linear_v",
    "attention.out": "self_attn.linear_out",
    "attention.position": "self_attn.linear_pos",
    "convolution.depthwise_norm": "conv.batch_norm",
}
_LAST_NAMES = {**LSTM_NAMES, "position_bias_u": "pos_bias_u", "position_bias_v": "pos_bias_v"}
_NAMES = {
    "encoder.subsampling.first": "encoder.pre_encode.conv.0",
    "encoder.subsampling.out": "encoder.pre_encode.out",
    "predictor.embedding": "decoder.prediction.embed",
    "joint.encoder": "joint.enc",
    "joint.predictor": "joint.pred",
    "ctc": "ctc_decoder.decoder_layers.0",
    "prompt.out": "prompt_kernel.2",
}

_PROMPT_INPUT = "prompt_kernel.0"


def load_state_dict(path: Path) -> StateDict:
    """Memory-maps model_weights.ckpt at `path`; the file must outlive the tensors.

    Raises CheckpointError for anything but a flat mapping of names to dense tensors.
    """
    _check_records(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except _UNPICKLING_ERRORS as error:
        raise CheckpointError(f"{_WEIGHTS}: contains more than tensors, or is broken{_detail(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{_WEIGHTS}: contains a {type(state).__name__}; accepted: a mapping of tensors")
    for name, tensor in state.items():
        _reject_odd_tensor(name, tensor)
    return {name: tensor.detach() for name, tensor in state.items()}


def without_adapters(state: StateDict, names: Sequence[str]) -> StateDict:
    """Returns the tensors without those of the adapters `names`, which are disabled."""
    if not names:
        return state
    _log.warning("adapters %s: disabled, left out of the bundle", ", ".join(names))
    places = tuple(f".adapter_layer.{name}." for name in names)
    return {name: tensor for name, tensor in state.items() if not any(place in f".{name}" for place in places)}


def convert_state_dict(state: StateDict, config: NemoConfig, half: bool) -> StateDict:
    """Returns the tensors of `tensor_shapes(config.model)`: float32, or with `half` float16 except for `features.`.

    Raises CheckpointError with NeMo's name of a tensor that is missing, unexpected or has another shape.
    """
    remaining = dict(state)
    known = prompt_input(_WEIGHTS, remaining, _PROMPT_INPUT, config.model)
    known |= _features(remaining, config.model.features, config.mel_band)
    tensors = convert_tensors(_WEIGHTS, remaining, config.model, known, partial(source_of, config=config), "batch_norm")
    # Copies, because tied tensors share their memory, which safetensors rejects.
    return {name: stored(_WEIGHTS, name, tensor, half, copy=True) for name, tensor in tensors.items()}


def prompt_hidden(state: StateDict) -> int:
    """Width between the two layers of the language prompts, which no configuration names."""
    bias = state.get(f"{_PROMPT_INPUT}.bias")
    if bias is None or bias.dim() != 1 or not len(bias):
        found = "missing" if bias is None else f"of shape {tuple(bias.shape)}"
        raise CheckpointError(f"{_WEIGHTS}: tensor {_PROMPT_INPUT}.bias is {found}, expected one axis")
    return len(bias)


def _detail(error: Exception) -> str:
    """Torch's finding. Its own text advises to load with `weights_only=False`, which runs what the file says."""
    if match := _GLOBAL.search(str(error)):
        return f": it names {match[1]}, which is not loaded"
    is_advice = isinstance(error, pickle.UnpicklingError) or not str(error)
    return "" if is_advice else f": {str(error).splitlines()[0]}"


def _check_records(path: Path) -> None:
    """Accepts only torch's zip format without compression, every record with its CRC-32, and a pickle of a sound size.

    `torch.serialization.set_crc32_options(False)` writes 0 for all.
    """
    try:
        with HeaderReader(path) as file, zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            has_checksums = any(record.CRC for record in records)
            if not has_checksums:
                _log.warning("%s: was saved without checksums, so damage cannot be detected", _WEIGHTS)
            for record in records:
                if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                    message = f"record {record.filename!r} is compressed; accepted: stored records"
                    raise CheckpointError(f"{_WEIGHTS}: {message}")
                if not has_checksums:
                    del record.CRC  # zipfile compares none then
                is_pickle = record.filename.rpartition("/")[2].lower() == _PICKLE
                data = bytearray()
                with archive.open(record) as stored_record:
                    while len(data) <= MAX_PICKLE_BYTES and (block := stored_record.read(_COPY_BYTES)):
                        data += block if is_pickle else b""
                _check_pickle(record.filename, data)
    except (zipfile.BadZipFile, *_UNPICKLING_ERRORS) as error:
        message = "not a file of torch.save's zip format, damaged or truncated"
        raise CheckpointError(f"{_WEIGHTS}: {message}: {error}") from error


def _check_pickle(name: str, data: bytearray) -> None:
    """Counts the opcodes, which torch would take one by one; a pickle that is broken is torch's to reject."""
    if len(data) > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{_WEIGHTS}: {name} has more than {MAX_PICKLE_BYTES} bytes")
    opcodes = 0
    with contextlib.suppress(*_UNPICKLING_ERRORS):
        for opcodes, _ in enumerate(pickletools.genops(bytes(data)), start=1):
            if opcodes > MAX_PICKLE_OPCODES:
                break
    if opcodes > MAX_PICKLE_OPCODES:
        raise CheckpointError(f"{_WEIGHTS}: {name} has more than {MAX_PICKLE_OPCODES} opcodes")


def _reject_odd_tensor(name: object, tensor: object) -> None:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # no other subclass
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or not is_plain:
        raise CheckpointError(f"{_WEIGHTS}: {name!r} is a {type(tensor).__name__}; accepted: named tensors")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise CheckpointError(f"{_WEIGHTS}: tensor {name} is {tensor.layout}, {tensor.dtype}; accepted: dense tensors")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{_WEIGHTS}: tensor {name} claims more elements than are stored")


def source_of(name: str, shape: tuple[int, ...], config: NemoConfig) -> SourceTensor:
    """The source of a bundle's tensor; NeMo's one-wide convolutions keep their kernel axes."""
    place, _, last = name.rpartition(".")
    parts = place.split(".")
    if place.startswith("encoder.layers."):
        layer = ".".join(parts[:3])
        source = f"{layer}.{_LAYER_NAMES['.'.join(parts[3:])]}"
    elif place.startswith("encoder.subsampling.") and parts[-1].isdigit():
        source = f"encoder.pre_encode.conv.{(2 if 'depthwise' in parts else 3) + 3 * int(parts[-1])}"
    elif place.startswith("predictor.lstm."):
        return SourceTensor(f"decoder.prediction.dec_rnn.lstm.{_LAST_NAMES[last]}{parts[-1]}", shape)
    elif place == "joint.output":
        source = f"joint.joint_net.{2 if config.joint_has_dropout else 1}"
    elif place == "ctc" and config.model.transducer is None:  # the only head has the place of the predictor
        source = "decoder.decoder_layers.0"
    else:
        source = _NAMES[place]
    return SourceTensor(f"{source}.{_LAST_NAMES.get(last, last)}", source_shape(place, last, shape))


def _features(remaining: StateDict, features: FeatureConfig, band: MelBand) -> StateDict:
    """Returns window and filterbank as stored, computed if missing."""
    window, filterbank = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
    bins = (features.mel_bins, features.fft_samples // 2 + 1)
    if window in remaining:
        window_tensor = take(_WEIGHTS, remaining, SourceTensor(window, (features.window_samples,)))
    else:
        window_tensor = hann_window(features.window_samples)
    if filterbank in remaining:
        mel_tensor = take(_WEIGHTS, remaining, SourceTensor(filterbank, (1, *bins))).reshape(bins)
    else:
        mel_tensor = mel_filterbank(features.sample_rate_hz, features.fft_samples, features.mel_bins, *band)
    return {"features.window": window_tensor, "features.mel_filterbank": mel_tensor}
