"""Imports a .nemo file without NeMo. Everything in the file is untrusted data; nothing of it is executed."""

import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

import sentencepiece
from safetensors import SafetensorError

from penstock.errors import CheckpointError
from penstock.model.bundle import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, Checkpoint, sha256_of, write_checkpoint
from penstock.model.nemo.archive import NemoArchive
from penstock.model.nemo.config import NemoConfig, read_nemo_config
from penstock.model.nemo.untrusted_yaml import MAX_YAML_BYTES, parse_yaml
from penstock.model.nemo.weights import convert_state_dict, load_state_dict

MAX_TOKENIZER_BYTES = 64 << 20


def import_nemo(nemo_path: str | Path, directory: str | Path, half: bool = False, replace: bool = False) -> Checkpoint:
    """Converts a NeMo checkpoint to a bundle at `directory` and opens it.

    `half` stores weights as float16, except those of the front end. `directory` must be new or empty; with `replace` it
    may be a bundle, whose additional files (such as a model card) are kept. The bundle appears atomically.
    Raises CheckpointError for everything unsafe, broken or unsupported.
    """
    nemo_path, directory = Path(nemo_path), Path(directory)
    try:
        _reject_target(directory, replace)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
            bundle = _convert(nemo_path, Path(scratch), half)
            if replace and directory.exists():
                _replace(directory, bundle, Path(scratch) / "old")
            else:
                os.replace(bundle, directory)  # fails if another process was faster
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: cannot be written: {error}") from error
    return Checkpoint(directory)


def _convert(nemo_path: Path, scratch: Path, half: bool) -> Path:
    """Writes the bundle into a new directory in `scratch`; every CheckpointError names `nemo_path`."""
    try:
        return _convert_checked(nemo_path, scratch, half)
    except CheckpointError as error:
        raise CheckpointError(f"{nemo_path}: {error.message}") from error


def _convert_checked(nemo_path: Path, scratch: Path, half: bool) -> Path:
    if not nemo_path.is_file():
        raise CheckpointError("is a directory; accepted: a .nemo file" if nemo_path.is_dir() else "no such file")
    bundle, weights = scratch / "bundle", scratch / "weights"
    with NemoArchive(nemo_path, scratch) as archive:
        config = read_nemo_config(parse_yaml(archive.read("model_config.yaml", MAX_YAML_BYTES)))
        tokenizer = _read_tokenizer(archive, config)
        with weights.open("wb") as file:
            archive.copy("model_weights.ckpt", file)
    tensors = convert_state_dict(load_state_dict(weights), config, half)
    source = {"file": nemo_path.name, "sha256": sha256_of(nemo_path), "class": config.class_name}
    write_checkpoint(bundle, config.model, tensors, tokenizer, source)
    return bundle


def _read_tokenizer(archive: NemoArchive, config: NemoConfig) -> bytes:
    """Returns the SentencePiece model; it must parse and have the vocabulary size of the networks."""
    name = config.tokenizer_member
    if name not in archive.names:
        name = PurePosixPath(name).name  # older checkpoints hold the path of the training machine
    data = archive.read(name, MAX_TOKENIZER_BYTES)
    if not data:
        raise CheckpointError(f"{name}: is empty; accepted: a SentencePiece model")
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_proto=data).get_piece_size()
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"{name}: not a SentencePiece model: {error}") from error
    expected = config.model.vocabulary_size
    if pieces != expected:
        size = "decoder.vocab_size" if config.model.transducer else "decoder.num_classes"
        raise CheckpointError(f"{name}: has {pieces} pieces, expected {expected} as {size}")
    return data


def _reject_target(directory: Path, replace: bool) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: is a file; accepted: a new or empty directory")
    is_bundle = (directory / CONFIG_FILE).is_file() and (directory / WEIGHTS_FILE).is_file()
    if any(directory.iterdir()) and not (replace and is_bundle):
        accepted = "a new or empty directory" + (", or this one with --force" if is_bundle else "")
        raise CheckpointError(f"{directory}: {'is a bundle' if is_bundle else 'is not empty'}; accepted: {accepted}")


def _replace(directory: Path, bundle: Path, old: Path) -> None:
    """Replaces a bundle, which is moved to `old`; additional files are kept.

    If that fails, the old bundle is restored, or the bundle that another process created meanwhile stays.
    """
    _copy_own_files(directory, bundle)
    directory.rename(old)
    try:
        os.replace(bundle, directory)
    except OSError:
        if directory.exists():
            _copy_own_files(old, directory)
        else:
            old.rename(directory)
        raise


def _copy_own_files(source: Path, target: Path) -> None:
    """Copies the files that are not part of a bundle."""
    for path in source.iterdir():
        if path.name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE) or (target / path.name).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            shutil.copy2(path, target / path.name, follow_symlinks=False)
