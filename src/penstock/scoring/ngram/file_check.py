"""Checks by a file's beginning that it is a language model. Does not import torch, so that a launcher can use it."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from penstock.errors import LanguageModelError
from penstock.scoring.ngram.arpa import check_arpa

SUFFIX = ".safetensors"
FORMAT, FORMAT_VERSION = "penstock-ngram-lm", "1"


def check_lm_file(path: Path) -> None:
    """LanguageModelError names a file that is neither ARPA nor the compiled form of this version."""
    if path.suffix != SUFFIX:
        return check_arpa(path)
    try:
        with safe_open(path, framework="numpy") as file:
            check_metadata(path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise LanguageModelError(f"{path}: cannot be read: {error}") from error


def check_metadata(path: Path, metadata: dict[str, str]) -> None:
    """LanguageModelError unless the metadata are those of the compiled form."""
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, FORMAT_VERSION):
        raise LanguageModelError(f"{path}: not a language model of this version of Penstock")
