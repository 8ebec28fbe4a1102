"""Puts an imported bundle in its place at once, or leaves everything as it was."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError

from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from penstock.model.card import CARD_FILE


def write_new_bundle(
    directory: str | Path, replace: bool, convert: Callable[[Path], Path], keeps_card: bool = True
) -> Checkpoint:
    """Places a bundle by `place_new_bundle`, and opens it."""
    place_new_bundle(directory, replace, convert, keeps_card)
    return Checkpoint(directory)


def place_new_bundle(
    directory: str | Path, replace: bool, convert: Callable[[Path], Path], keeps_card: bool = True
) -> None:
    """Moves the bundle that `convert` writes into a folder of the scratch directory it is given to `directory`.

    `directory` must be new or empty; with `replace` it may be a bundle, whose additional files are kept, its model
    card only with `keeps_card`. The bundle appears atomically. Raises CheckpointError, also for what cannot be written.
    """
    directory = Path(directory)
    try:
        if directory.is_symlink():  # a directory can be renamed to where the link points, but not to the link
            directory = directory.resolve()
        check_new_bundle(directory, replace)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
            bundle = convert(Path(scratch))
            if replace and directory.exists():
                _replace(directory, bundle, Path(scratch) / "old", () if keeps_card else (CARD_FILE,))
            else:
                os.replace(bundle, directory)  # fails if another process was faster
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: cannot be written: {error}") from error


def check_new_bundle(directory: Path, replace: bool) -> None:
    """Raises CheckpointError if `write_new_bundle` would not write to `directory`, with what it accepts."""
    try:
        if not directory.exists():
            place = next(parent for parent in directory.absolute().parents if parent.exists())
            if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
                raise CheckpointError(f"{directory}: cannot be written; accepted: a directory below a writable one")
            return
        if not directory.is_dir():
            raise CheckpointError(f"{directory}: is a file; accepted: a new or empty directory")
        is_bundle = (directory / CONFIG_FILE).is_file() and (directory / WEIGHTS_FILE).is_file()
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be written: {error.strerror}") from error
    if not is_empty and not (replace and is_bundle):
        accepted = "a new or empty directory" + (", or this one with --force" if is_bundle else "")
        raise CheckpointError(f"{directory}: {'is a bundle' if is_bundle else 'is not empty'}; accepted: {accepted}")


def _replace(directory: Path, bundle: Path, old: Path, dropped: Sequence[str]) -> None:
    """Replaces a bundle, which is moved to `old`; additional files are kept except those named `dropped`.

    If that fails, the old bundle is restored, or the bundle that another process created meanwhile stays.
    """
    _copy_own_files(directory, bundle, dropped)
    directory.rename(old)
    try:
        os.replace(bundle, directory)
    except OSError:
        if directory.exists():
            _copy_own_files(old, directory, dropped)
        else:
            old.rename(directory)
        raise


def _copy_own_files(source: Path, target: Path, dropped: Sequence[str]) -> None:
    """Copies the files that are neither part of a bundle nor named `dropped`."""
    for path in source.iterdir():
        if path.name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE, *dropped) or (target / path.name).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            shutil.copy2(path, target / path.name, follow_symlinks=False)
