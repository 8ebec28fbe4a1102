"""Imports a .nemo file without NeMo. Everything in the file is untrusted data; nothing of it is executed."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import torch

from penstock.errors import CheckpointError, naming
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.bundle_files import sha256_of
from penstock.model.card import card_languages, copy_card, write_languages
from penstock.model.languages import with_labels
from penstock.model.limits import MAX_LAYERS
from penstock.model.nemo.archive import NemoArchive
from penstock.model.nemo.config import JOINTNET, PREDNET, USE_BIAS, NemoConfig, read_nemo_config
from penstock.model.nemo.weights import convert_state_dict, load_state_dict, prompt_hidden, without_adapters
from penstock.model.new_bundle import write_new_bundle
from penstock.model.section import MAX_YAML_BYTES, parse_yaml
from penstock.model.source_tensors import StateDict
from penstock.model.vocabulary import read_pieces, write_characters, write_models

MAX_TOKENIZER_BYTES = 64 << 20
_EMBEDDING = "decoder.prediction.embed.weight"
_LSTM = "decoder.prediction.dec_rnn.lstm.weight_ih_l{}"
_JOINT = "joint.enc.weight"
_JOINT_OUTPUT_AFTER_DROPOUT = "joint.joint_net.2.weight"
_BIAS = "encoder.layers.0.self_attn.linear_q.bias"


def import_nemo(
    nemo_path: str | Path,
    directory: str | Path,
    half: bool = False,
    replace: bool = False,
    origin: dict[str, str] | None = None,
) -> Checkpoint:
    """Converts a NeMo checkpoint to a bundle at `directory` and opens it.

    `half` stores weights as float16, except those of the front end. `directory` must be new or empty; with `replace` it
    may be a bundle, whose additional files are kept. A model card beside the checkpoint becomes the bundle's. The
    bundle appears atomically.
    origin: added to the bundle's `source`. Raises CheckpointError for everything unsafe, broken or unsupported.
    """
    nemo_path = Path(nemo_path)

    def convert(scratch: Path) -> Path:
        with naming(nemo_path, CheckpointError):
            return _convert(nemo_path, scratch, half, origin or {})

    return write_new_bundle(directory, replace, convert)


def _convert(nemo_path: Path, scratch: Path, half: bool, origin: dict[str, str]) -> Path:
    """Writes the bundle into a new directory in `scratch`."""
    if not nemo_path.is_file():
        raise CheckpointError("is a directory; accepted: a .nemo file" if nemo_path.is_dir() else "no such file")
    bundle, weights = scratch / "bundle", scratch / "weights"
    with NemoArchive(nemo_path, scratch) as archive:
        config = read_nemo_config(parse_yaml(archive.read("model_config.yaml", MAX_YAML_BYTES)))
        tokenizer = _read_tokenizer(archive, config)
        with weights.open("wb") as file:
            archive.copy("model_weights.ckpt", file)
    state = without_adapters(load_state_dict(weights), config.disabled_adapters)
    config = _settled(config, state)
    config = config._replace(model=with_labels(config.model, tokenizer))
    tensors = convert_state_dict(state, config, half)
    source = {"file": nemo_path.name, "sha256": sha256_of(nemo_path), "class": config.class_name, **origin}
    write_checkpoint(bundle, config.model, tensors, tokenizer, source)
    copy_card(nemo_path.parent, bundle)
    if languages := [language for language in config.tokenizers if language and not card_languages(bundle)]:
        write_languages(bundle, languages)
    return bundle


def _read_tokenizer(archive: NemoArchive, config: NemoConfig) -> bytes:
    """Returns the labels as a bundle's `tokenizer.model`, which must have the vocabulary size of the networks."""
    if not config.tokenizers:
        return write_characters([str(label) for label in config.vocabulary])
    models = {language: _read_pieces(archive, name) for language, name in config.tokenizers.items()}
    names = [name for _, pieces in models.values() for name in pieces]
    members, expected = " and ".join(config.tokenizers.values()), config.model.vocabulary_size
    if len(names) != expected:
        size = "decoder.vocab_size" if config.model.transducer else "decoder.num_classes"
        raise CheckpointError(f"{members}: has {len(names)} pieces, expected {expected} as {size}")
    for label, (name, listed) in enumerate(zip(names, config.vocabulary, strict=False)):
        if isinstance(listed, str) and name != listed:
            raise CheckpointError(f"{members}: piece {label} is {name!r}, but {listed!r} in the head")
    files = {language: data for language, (data, _) in models.items()}
    return files[""] if "" in files else write_models(files)


def _read_pieces(archive: NemoArchive, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns a SentencePiece model, which must parse, and its pieces."""
    if name not in archive.names:
        name = PurePosixPath(name).name  # older checkpoints hold the path of the training machine
    data = archive.read(name, MAX_TOKENIZER_BYTES)
    with naming(name, CheckpointError):
        return data, read_pieces(data).names


def _settled(config: NemoConfig, state: StateDict) -> NemoConfig:
    """Returns the configuration with biases, the width of language prompts, and sizes of an empty `prednet` or
    `jointnet`, as the tensors have them.

    Raises CheckpointError with NeMo's name of a tensor that is missing.
    """
    model = config.model
    if USE_BIAS in config.unsettled:
        model = replace(model, encoder=replace(model.encoder, use_bias=_BIAS in state))
    if model.prompt is not None:
        model = replace(model, prompt=replace(model.prompt, hidden=prompt_hidden(state)))
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
