"""The files of a bundle, of a recognizer or of a speaker model: JSON and safetensors, which execute nothing."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from penstock.errors import CheckpointError, shown

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT, SPEAKERS_FORMAT = "penstock-bundle", "penstock-speakers"
_KINDS = {FORMAT: "a recognizer", SPEAKERS_FORMAT: "a speaker model"}
CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "weights.safetensors", "tokenizer.model"

Shapes = dict[str, tuple[int, ...]]


def read_tensors(path: Path, wanted: Shapes, int8: Collection[str] = ()) -> "dict[str, torch.Tensor]":
    """Copies of tensors as they are stored, floating or, those that `int8` names, int8.

    Raises CheckpointError with the name of a tensor that is missing or has another shape or type.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            stored = set(file.keys())
            missing = [name for name in wanted if name not in stored]
            if missing:
                raise CheckpointError(f"{path}: tensor {missing[0]} is missing")
            tensors = {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    for name, tensor in tensors.items():
        kind = "int8" if name in int8 else "floating"
        is_expected = str(tensor.dtype) == "torch.int8" if name in int8 else tensor.is_floating_point()
        if tuple(tensor.shape) != wanted[name] or not is_expected:
            raise CheckpointError(
                f"{path}: tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, expected {kind} {wanted[name]}"
            )
    return {name: tensor.clone() for name, tensor in tensors.items()}


def save_tensors(
    path: Path,
    tensors: "dict[str, torch.Tensor]",
    shapes: Shapes,
    parts: "Mapping[str, dict[str, torch.Tensor]] | None" = None,
) -> None:
    """Writes the tensors of `shapes`, and their directory; raises CheckpointError naming one that does not match.

    parts: what is written in place of some tensors.
    """
    from safetensors.torch import save_file

    for name in sorted(shapes.keys() ^ tensors.keys()):
        raise CheckpointError(f"tensor {name} is {'missing' if name in shapes else 'not expected'}")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise CheckpointError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {shapes[name]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    mode = path.stat().st_mode  # safetensors creates files that only their owner can read
    written = {name: tensors[name].contiguous() for name in shapes}
    for each in (parts or {}).values():
        written |= each
    save_file(written, path)
    path.chmod(mode)


def read_document(directory: Path, kind: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """The object in config.json of a bundle of this kind. Raises CheckpointError."""
    path = directory / CONFIG_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{directory}: not a bundle: {CONFIG_FILE}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != kind:
        of_other = f"; it is of {_KINDS[found]}" if isinstance(found, str) and found in _KINDS else ""
        raise CheckpointError(f'{path}: not a bundle of {_KINDS[kind]}: "format" must be "{kind}"{of_other}')
    if document.get("version") not in versions:
        supported = ", ".join(map(str, versions))
        raise CheckpointError(f"{path}: version {document.get('version')!r}, supported: {supported}")
    for key in ("source", "sha256"):
        if not isinstance(document.get(key, {}), dict):
            raise CheckpointError(f'{path}: "{key}" is {shown(document[key])}; accepted: an object')
    return document


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
