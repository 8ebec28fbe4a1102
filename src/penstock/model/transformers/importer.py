"""Imports a directory in Transformers format. Everything in it is untrusted data; nothing of it is executed."""

from pathlib import Path

from penstock.errors import CheckpointError, naming
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.card import copy_card
from penstock.model.languages import with_labels
from penstock.model.new_bundle import write_new_bundle
from penstock.model.transformers.config import read_transformers_config
from penstock.model.transformers.files import content_sha256
from penstock.model.transformers.tokenizer import convert_tokenizer
from penstock.model.transformers.weights import convert_state_dict, load_state_dict


def import_transformers(
    source: str | Path,
    directory: str | Path,
    half: bool = False,
    replace: bool = False,
    origin: dict[str, str] | None = None,
) -> Checkpoint:
    """Converts the checkpoint in the directory `source` to a bundle at `directory` and opens it.

    half, replace, origin: as `import_nemo` has them.
    Raises CheckpointError for everything unsafe, broken or unsupported.
    """
    source = Path(source)
    return write_new_bundle(directory, replace, lambda scratch: _convert(source, scratch, half, origin or {}))


def _convert(source: Path, scratch: Path, half: bool, origin: dict[str, str]) -> Path:
    """Writes the bundle into a new directory in `scratch`; every CheckpointError names `source`."""
    bundle = scratch / "bundle"
    with naming(source, CheckpointError):
        config = read_transformers_config(source)
        tokenizer = convert_tokenizer(source, config.model.vocabulary_size)
        model = with_labels(config.model, tokenizer)
        tensors = convert_state_dict(load_state_dict(source), model, half)
        provenance = {"sha256": content_sha256(source), "class": config.class_name, **origin}
        write_checkpoint(bundle, model, tensors, tokenizer, provenance)
        copy_card(source, bundle)
    return bundle
