"""Language model files to tables: ARPA, and the quick form that `penstock lm compile` makes of it.

The quick form is safetensors: the arrays of `NgramTables`, and as metadata the tokens they are for.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from penstock.errors import PenstockError
from penstock.fusion.arpa import ArpaError, read_arpa
from penstock.fusion.ngram_lm import NgramLm
from penstock.fusion.ngram_tables import NgramTables, build_tables, check_tables
from penstock.fusion.token_names import TokenFormat, TokenNames, find_labels

SUFFIX = ".safetensors"
_FORMAT, _FORMAT_VERSION = "penstock-ngram-lm", "1"
_FLOATS = {"arc_scores", "root_scores", "backoff_scores", "final_scores"}
_NAMED_IN_ERRORS = 5


def load_ngram_lm(
    path: str | Path,
    names: TokenNames,
    device: torch.device | str = "cpu",
    token_format: TokenFormat | None = None,
    kernels: str = "auto",
) -> NgramLm:
    """`read_tables`, on a device. kernels: as in `NgramLm`."""
    return NgramLm(read_tables(path, names, token_format), device, kernels)


def read_tables(path: str | Path, names: TokenNames, token_format: TokenFormat | None = None) -> NgramTables:
    """Reads an ARPA file, or what `save_tables` wrote (`.safetensors`), for a model whose labels are `names`.

    Raises PenstockError naming the file if it is broken or for another vocabulary. `token_format` is for ARPA files in
    which every word could be either; else it is found out.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return _read_saved(path, names)
    arpa = read_arpa(path)
    try:
        return build_tables(arpa, find_labels(arpa.words, names, token_format), len(names.pieces))
    except PenstockError as error:
        raise ArpaError(f"{path}: {error}") from error


def save_tables(tables: NgramTables, path: str | Path, names: TokenNames) -> None:
    """Writes the quick form; `path` must end in `.safetensors`, or it would not be known again."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise PenstockError(f"{path}: the name must end in {SUFFIX}")
    metadata = {"format": _FORMAT, "version": _FORMAT_VERSION, "tokens": json.dumps(names.pieces)}
    try:
        path.write_bytes(save(tables._asdict(), metadata))
    except (SafetensorError, OSError) as error:
        raise PenstockError(f"{path}: cannot be written: {error}") from error


def _read_saved(path: Path, names: TokenNames) -> NgramTables:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("version")) != (_FORMAT, _FORMAT_VERSION):
                raise PenstockError(f"{path}: not a language model of this version of Penstock")
            _check_tokens(path, metadata, names)
            arrays = {name: np.array(file.get_tensor(name)) for name in NgramTables._fields}
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a number type that numpy has not
        raise PenstockError(f"{path}: cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype != (np.float32 if name in _FLOATS else np.int64):
            raise PenstockError(f"{path}: {name} is {array.dtype}")
    tables = NgramTables(**arrays)
    try:
        check_tables(tables)
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}") from error
    if len(tables.root_scores) != len(names.pieces):
        raise PenstockError(f"{path}: {len(tables.root_scores)} labels, the model has {len(names.pieces)}")
    return tables


def _check_tokens(path: Path, metadata: dict[str, str], names: TokenNames) -> None:
    try:
        stored = json.loads(metadata.get("tokens", ""))
    except ValueError as error:
        raise PenstockError(f"{path}: its token list is not JSON: {error}") from error
    if stored != list(names.pieces):
        strangers = [piece for piece in stored if piece not in set(names.pieces)] if isinstance(stored, list) else []
        shown = ", ".join(map(repr, strangers[:_NAMED_IN_ERRORS])) or "none, but their order differs"
        raise PenstockError(f"{path}: another vocabulary; tokens that the model has not: {shown}")
