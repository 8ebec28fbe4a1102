"""The files of a bundle, of a recognizer or of a speaker model: JSON and safetensors, which execute nothing."""

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
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

    Raises CheckpointError with the name of a tensor that is missing, is not finite or has another shape or type.
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
        if kind == "floating" and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path}: tensor {name} is not finite")
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


def read_document(directory: Path, kind: str, versions: Collection[int]) -> dict[str, Any]:
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


def write_document(directory: Path, document: dict[str, Any], names: Iterable[str]) -> None:
    """Writes config.json with the SHA-256 of its own values and of the files `names`."""
    sha256 = {name: sha256_of(directory / name) for name in names}
    document = document | {"sha256": sha256 | {CONFIG_FILE: _values_sha256(document)}}
    (directory / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def check_files(directory: Path, document: dict[str, Any], names: Iterable[str]) -> None:
    """Compares the bundle with the SHA-256 in its config.json; raises CheckpointError naming the first that differs.

    Bundles of earlier versions have none for the values of config.json.
    """
    noted = document.get("sha256", {})
    found = {name: sha256_of(directory / name) for name in names}
    if CONFIG_FILE in noted or noted.keys() != found.keys():
        found[CONFIG_FILE] = _values_sha256(document)
    for name, digest in found.items():
        if digest != noted.get(name):
            raise CheckpointError(
                f"{directory / name}: its SHA-256 is not the one in {CONFIG_FILE}: damaged or changed; import it again"
            )


def _values_sha256(document: dict[str, Any]) -> str:
    values = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


_SETTLED_NS = 2 * 10**9
"""Since its last change a file is this old before its digest is kept: a later change then has another time."""
_digests: dict[tuple[int, int, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as hex digits, computed once per time and size of it."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if key not in _digests:
            sha256 = hashlib.sha256()
            while block := file.read(1 << 20):
                sha256.update(block)
            digest = sha256.hexdigest()
            if time.time_ns() - status.st_mtime_ns < _SETTLED_NS:
                return digest
            _digests[key] = digest
    return _digests[key]
