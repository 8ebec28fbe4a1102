"""Resolves `--model` to the directory of a bundle. Opens no pickle: a separate process imports.

a directory            a bundle, used where it is
FILE.nemo              imported into the cache, once per content
ORGANISATION/NAME      fetched from the Hugging Face hub, then as above
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.errors import CheckpointError, ModelNotFoundError, split_code
from penstock.model.bundle import FORMAT_VERSION, Checkpoint, sha256_of

ACCEPTED = "a bundle directory, a .nemo file, or a hub id such as nvidia/NAME"
BUNDLED_MODEL = Path(__file__).parents[1] / "bundled" / "an4-rnnt-hybrid"
"""The model of commands that are given none."""
BUNDLED_MODEL_NOTICE = (
    f"no --model: using the bundled {BUNDLED_MODEL.name}, a demo for letters, digits, dates and a few commands"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(source: str | Path) -> Path:
    """Returns the directory of the bundle for `source`. The first import of a large model may take minutes.

    Raises CheckpointError with one sentence that says what is wrong and what is accepted.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return Checkpoint(path).directory.absolute()
    if path.is_file():
        if path.suffix != ".nemo":
            raise CheckpointError(f"{source}: is not a model; accepted: {ACCEPTED}")
        return _import_to_cache(path)
    if _HUB_ID.fullmatch(str(source)) and path.suffix != ".nemo":
        return _import_to_cache(_fetch(str(source)))
    raise ModelNotFoundError(f"{source}: no such file or directory; accepted: {ACCEPTED}")


def cache_directory() -> Path:
    """Returns the cache of imported bundles: $PENSTOCK_CACHE, $XDG_CACHE_HOME/penstock or ~/.cache/penstock."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "penstock"
    return Path.home() / ".cache" / "penstock"


def _import_to_cache(nemo_path: Path) -> Path:
    """Returns the cached bundle and imports it if missing; of two concurrent imports the first to finish wins."""
    directory = cache_directory().absolute() / f"{_content_key(nemo_path)}-v{FORMAT_VERSION}"
    if _is_bundle(directory):
        return directory
    shutil.rmtree(directory, ignore_errors=True)  # incomplete, for example because a file was deleted
    command = [sys.executable, "-m", "penstock.commands.import_nemo", str(nemo_path), str(directory)]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if finished.returncode != 0 and not _is_bundle(directory):
        _, reason = split_code(finished.stderr.strip().rpartition("\n")[2].removeprefix("penstock: error: "))
        if finished.returncode < 0:
            reason = f"{nemo_path}: the import process was killed by signal {-finished.returncode}"
        raise CheckpointError(reason or f"{nemo_path}: the import process failed")
    return Checkpoint(directory).directory


def _content_key(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _is_bundle(directory: Path) -> bool:
    try:
        Checkpoint(directory)
    except CheckpointError:
        return False
    return True


def _fetch(hub_id: str) -> Path:
    """Downloads the only .nemo file of a hub repository, unless the hub's cache has it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        snapshot = Path(snapshot_download(hub_id, allow_patterns=["*.nemo"]))
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError) as error:
        raise ModelNotFoundError(
            f"{hub_id}: no such file or directory, and it cannot be fetched from the Hugging Face hub "
            f"({_first_line(error)}); accepted: {ACCEPTED}"
        ) from error
    found = sorted(snapshot.rglob("*.nemo"))
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(snapshot)) for path in found) or "none"
        raise ModelNotFoundError(f"{hub_id}: accepted: a repository with one .nemo file; found: {names}")
    return found[0]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].removeprefix("Got: ").rstrip(".") if lines else type(error).__name__
