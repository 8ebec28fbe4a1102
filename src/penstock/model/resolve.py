"""Resolves `--model` to the directory of a bundle. Opens no pickle: a separate process imports.

a directory                    a bundle, used where it is, or a checkpoint in Transformers format, imported as below
FILE.nemo                      imported into the cache, once per content
ORGANIZATION/NAME[@REVISION]   fetched from the Hugging Face hub, then imported, once per commit
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from math import prod
from pathlib import Path

from penstock.errors import CheckpointError, ModelNotFoundError, naming, split_code
from penstock.model.bundle import FORMAT_VERSION, Checkpoint, encoder_shapes
from penstock.model.bundle_files import sha256_of
from penstock.model.foreign import reject_foreign
from penstock.model.hub import fetch, parse_source
from penstock.model.transformers.files import content_sha256, model_type
from penstock.runtime import module_command

ACCEPTED = "a bundle or checkpoint directory, a .nemo file, or a hub id such as nvidia/NAME"
BUNDLED_MODEL = Path(__file__).parents[1] / "bundled" / "an4-rnnt-hybrid"
"""The model of commands that are given none."""
BUNDLED_MODEL_NOTICE = (
    f"no --model: using the bundled {BUNDLED_MODEL.name}, a demo for letters, digits, dates and a few commands"
)

_LARGE_NUMBERS = 100_000_000


def int8_notice(checkpoint: Checkpoint, precision: str, device: str) -> str | None:
    """Says what int8 would save a large model on a CPU whose precision is not chosen; None for others."""
    numbers = sum(map(prod, encoder_shapes(checkpoint.config.encoder).values()))
    if precision != "auto" or device != "cpu" or checkpoint.int8 or numbers < _LARGE_NUMBERS:
        return None
    return (
        "a large model in float32: --precision int8 takes less than half of its memory and about half of its time, and "
        "may change a close word (--precision float32 hides this line)"
    )


def resolve_or_bundled(source: str | None) -> Path:
    """`resolve_model`, or the bundled model without a source; the error of a missing model says so."""
    try:
        return resolve_model(source or BUNDLED_MODEL)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{error.message}. Without --model the bundled demonstration model is used, which needs no network"
        ) from error


def resolve_model(source: str | Path) -> Path:
    """Returns the directory of the bundle for `source`. The first import of a large model may take minutes.

    Raises CheckpointError with one sentence that says what is wrong and what is accepted.
    """
    try:
        path = Path(source).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
        if is_directory or is_file:
            reject_foreign(path)
    except (OSError, RuntimeError) as error:  # no access, or no such user's home
        raise CheckpointError(f"{source}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if is_directory:
        if not _is_transformers(path):
            return Checkpoint(path).directory.absolute()
        return _import_to_cache(str(path), _content_key(path, content_sha256))
    if is_file:
        if path.suffix != ".nemo":
            raise CheckpointError(f"{source}: is not a model; accepted: {ACCEPTED}")
        return _import_to_cache(str(path), _content_key(path, sha256_of))
    hub_source = parse_source(str(source))
    if hub_source is None:
        raise ModelNotFoundError(f"{source}: no such file or directory; accepted: {ACCEPTED}")
    checkpoint = fetch(hub_source)
    return _import_to_cache(str(checkpoint.source), checkpoint.key, "--format", checkpoint.format)


def cache_directory() -> Path:
    """Returns the cache of imported bundles: $PENSTOCK_CACHE, $XDG_CACHE_HOME/penstock or ~/.cache/penstock."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "penstock"
    return Path.home() / ".cache" / "penstock"


def _import_to_cache(source: str, key: str, *options: str) -> Path:
    """Returns the cached bundle and imports it if missing; of two concurrent imports the first to finish wins."""
    directory = cache_directory().absolute() / f"{key}-v{FORMAT_VERSION}"
    if _is_bundle(directory):
        return directory
    shutil.rmtree(directory, ignore_errors=True)  # incomplete, for example because a file was deleted
    command = [*module_command("penstock.cli"), "import", source, str(directory), *options]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if finished.returncode != 0 and not _is_bundle(directory):
        _, reason = split_code(finished.stderr.strip().rpartition("\n")[2].removeprefix("penstock: error: "))
        if finished.returncode < 0:
            reason = f"{source}: the import process was killed by signal {-finished.returncode}"
        raise CheckpointError(reason or f"{source}: the import process failed")
    return Checkpoint(directory).directory


def _content_key(path: Path, digest: Callable[[Path], str]) -> str:
    try:
        with naming(path, CheckpointError):
            return digest(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _is_transformers(directory: Path) -> bool:
    try:
        return model_type(directory) is not None
    except CheckpointError:
        return False


def _is_bundle(directory: Path) -> bool:
    try:
        Checkpoint(directory)
    except CheckpointError:
        return False
    return True
