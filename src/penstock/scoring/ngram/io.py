"""Reads language model files for a recognizer: ARPA, and the compiled form that `penstock lm compile` writes.

The compiled form is safetensors: the arrays of `NgramTables`, and the tokens as metadata. The words of an ARPA file are
tokens in one of two spellings. *Pieces*: those of the tokenizer, as `▁six`, which Penstock writes. *Offset*: label i is
the character chr(i + 100), which NeMo's scripts write.
"""

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from penstock.errors import LanguageModelError, OutputError, SettingError, naming
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import BEGIN, END, UNKNOWN, ArpaError, check_arpa, read_arpa, read_words
from penstock.scoring.ngram.tables import NgramTables, build_tables, check_tables

if TYPE_CHECKING:
    import torch

    from penstock.scoring.ngram.lm import NgramLm

SUFFIX = ".safetensors"
_FORMAT, _FORMAT_VERSION = "penstock-ngram-lm", "1"
NEMO_TOKEN_OFFSET = 100
_SPECIAL = (BEGIN, END, UNKNOWN)
_FLOATS = {"arc_scores", "root_scores", "backoff_scores", "final_scores"}
_NAMED_IN_ERRORS = 5


class TokenFormat(Enum):
    """Spelling of tokens in an ARPA file."""

    PIECES = "pieces"
    OFFSET = "offset"


class TokenNames(NamedTuple):
    """The tokens of a recognizer's V labels."""

    pieces: tuple[str, ...]
    """The tokenizer's pieces, spaces as U+2581; label i is `pieces[i]`."""
    unknown_label: int
    """The tokenizer's unknown token; -1 if it has none."""
    control_labels: frozenset[int] = frozenset()
    """Control tokens, language tags and end tokens, which no text contains."""


def load_ngram_lm(
    path: str | Path,
    names: TokenNames,
    device: "torch.device | str" = "cpu",
    token_format: TokenFormat | None = None,
    kernels: str = "auto",
) -> "NgramLm":
    """Reads a model as `read_tables` does and copies it to a device. kernels: see `NgramLm`."""
    from penstock.scoring.ngram.lm import NgramLm  # here, because it imports torch

    return NgramLm(read_tables(path, names, token_format), device, kernels)


def read_tables(path: str | Path, names: TokenNames, token_format: TokenFormat | None = None) -> NgramTables:
    """Reads an ARPA file, or what `save_tables` wrote (`.safetensors`), for a model whose labels are `names`.

    LanguageModelError names the file if it is broken or for another vocabulary. token_format: of an ARPA file; None
    detects it.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return _read_saved(path, names)
    arpa = read_arpa(path)
    try:
        return build_tables(arpa, find_labels(arpa.words, names, token_format), len(names.pieces))
    except LanguageModelError as error:
        raise ArpaError(f"{path}: {error.message}") from error


def check_lm_file(path: Path) -> None:
    """LanguageModelError names a file that, by its beginning, is neither ARPA nor the compiled form of this version."""
    if path.suffix != SUFFIX:
        return check_arpa(path)
    try:
        with safe_open(path, framework="numpy") as file:
            _check_metadata(path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise LanguageModelError(f"{path}: cannot be read: {error}") from error


def check_vocabulary(path: str | Path, names: TokenNames) -> None:
    """LanguageModelError unless the tokens of a file are `names`; reads no n-grams but an ARPA file's 1-grams."""
    path = Path(path)
    if path.suffix != SUFFIX:
        try:
            find_labels(read_words(path), names)
        except LanguageModelError as error:
            raise error if isinstance(error, ArpaError) else ArpaError(f"{path}: {error.message}") from error
        return
    try:
        with safe_open(path, framework="numpy") as file:
            _check_tokens(path, file.metadata() or {}, names)
    except (SafetensorError, OSError) as error:
        raise LanguageModelError(f"{path}: cannot be read: {error}") from error


def check_name(path: Path) -> None:
    """SettingError unless a compiled file may have this name."""
    if path.suffix != SUFFIX:
        raise SettingError(f"{path}: the name must end in {SUFFIX}")


def save_tables(tables: NgramTables, path: str | Path, names: TokenNames) -> None:
    """Writes the compiled form; SettingError unless `path` ends in `.safetensors`, by which it is recognized."""
    path = Path(path)
    check_name(path)
    metadata = {"format": _FORMAT, "version": _FORMAT_VERSION, "tokens": json.dumps(names.pieces)}
    try:
        path.write_bytes(save(tables._asdict(), metadata))
    except (SafetensorError, OSError) as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error


def _read_saved(path: Path, names: TokenNames) -> NgramTables:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_metadata(path, metadata)
            _check_tokens(path, metadata, names)
            arrays = {name: np.array(file.get_tensor(name)) for name in NgramTables._fields}
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a number type that numpy lacks
        raise LanguageModelError(f"{path}: cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype != (np.float32 if name in _FLOATS else np.int64):
            raise LanguageModelError(f"{path}: {name} is {array.dtype}")
    tables = NgramTables(**arrays)
    with naming(path, LanguageModelError):
        check_tables(tables)
    if len(tables.root_scores) != len(names.pieces):
        raise LanguageModelError(f"{path}: {len(tables.root_scores)} labels, the model has {len(names.pieces)}")
    return tables


def _check_metadata(path: Path, metadata: dict[str, str]) -> None:
    """LanguageModelError unless the metadata are those of the compiled form."""
    if (metadata.get("format"), metadata.get("version")) != (_FORMAT, _FORMAT_VERSION):
        raise LanguageModelError(f"{path}: not a language model of this version of Penstock")


def _check_tokens(path: Path, metadata: dict[str, str], names: TokenNames) -> None:
    try:
        stored = json.loads(metadata.get("tokens", ""))
    except ValueError as error:
        raise LanguageModelError(f"{path}: its token list is not JSON: {error}") from error
    if stored != list(names.pieces):
        known = set(names.pieces)
        unknown = [piece for piece in stored if piece not in known] if isinstance(stored, list) else []
        shown = ", ".join(map(repr, unknown[:_NAMED_IN_ERRORS])) or "none, but their order differs"
        raise LanguageModelError(f"{path}: another vocabulary; tokens that the model lacks: {shown}")


def read_token_names(tokenizer_path: str | Path, textless: Sequence[int] = ()) -> TokenNames:
    """Reads the tokens of a `tokenizer.model`, of which `textless` are no text; CheckpointError if it is none."""
    vocabulary = Tokenizer(tokenizer_path).vocabulary
    return TokenNames(vocabulary.names, vocabulary.unknown, frozenset([*textless, *vocabulary.controls]))


def find_labels(words: Sequence[str], names: TokenNames, token_format: TokenFormat | None = None) -> np.ndarray:
    """The label of each word, [W] int64; -1 for `<s>`, `</s>` and `<unk>`.

    token_format None takes the first spelling in which every word is a token, pieces before offset. LanguageModelError
    names words that are no tokens: the file was made for another vocabulary.
    """
    formats = [token_format] if token_format else list(TokenFormat)
    unknown: dict[TokenFormat, list[str]] = {}
    for candidate in formats:
        labels, unknown[candidate] = _match(words, names, candidate)
        if not unknown[candidate]:
            return labels
    nearest = min(formats, key=lambda candidate: len(unknown[candidate]))
    raise LanguageModelError(_mismatch(words, names, nearest, unknown[nearest]))


def _match(words: Sequence[str], names: TokenNames, token_format: TokenFormat) -> tuple[np.ndarray, list[str]]:
    """Labels [W], and the words without one."""
    if token_format is TokenFormat.PIECES:
        known = {piece: label for label, piece in enumerate(names.pieces)}
    else:
        known = {chr(label + NEMO_TOKEN_OFFSET): label for label in range(len(names.pieces))}
    known |= dict.fromkeys(_SPECIAL, -1)
    labels = [known.get(word) for word in words]
    unknown = [word for word, label in zip(words, labels, strict=True) if label is None]
    return np.array([-1 if label is None else label for label in labels], dtype=np.int64), unknown


def _mismatch(words: Sequence[str], names: TokenNames, token_format: TokenFormat, unknown: list[str]) -> str:
    shown = ", ".join(map(repr, unknown[:_NAMED_IN_ERRORS]))
    if len(unknown) > _NAMED_IN_ERRORS:
        shown += f" and {len(unknown) - _NAMED_IN_ERRORS} more"
    return (
        f"another vocabulary: of {len(words)} words, {len(unknown)} are not among the model's "
        f"{len(names.pieces)} tokens, read as {token_format.value}: {shown}"
    )
