"""Fetches a checkpoint from the Hugging Face hub: one revision, one format, and only the files it needs.

`huggingface_hub` shows progress on a terminal, resumes a download that was cut, and keeps files in its cache, which
answers without a network, too (HF_HUB_OFFLINE=1).
"""

import contextlib
import fnmatch
import logging
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from penstock.errors import CheckpointError, ModelNotFoundError, OutputError
from penstock.model.card import CARD_FILE
from penstock.model.transformers.files import CONFIG, MODEL_TYPES, PATTERNS, model_type

NEMO, TRANSFORMERS = "nemo", "transformers"
FORMATS = (TRANSFORMERS, NEMO)
_PATTERNS = {TRANSFORMERS: PATTERNS, NEMO: ("*.nemo",)}
_SOURCE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_log = logging.getLogger(__name__)


class HubSource(NamedTuple):
    """`ORGANIZATION/NAME@REVISION`; revision: a commit, tag or branch, None for the default branch."""

    repository: str
    revision: str | None

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit."""
        return self.revision is not None and re.fullmatch("[0-9a-f]{40}", self.revision) is not None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


class HubCheckpoint(NamedTuple):
    """A checkpoint in the hub's cache: path of the .nemo or of the directory in Transformers format."""

    path: Path
    format: str
    repository: str
    commit: str

    @property
    def key(self) -> str:
        """Names the content: repository, commit and format, as a file name."""
        return f"{self.repository.replace('/', '--')}-{self.commit}-{self.format}"

    @property
    def source(self) -> HubSource:
        """The same checkpoint, whatever becomes of its branch."""
        return HubSource(self.repository, self.commit)

    @property
    def origin(self) -> dict[str, str]:
        """For the bundle's `source`."""
        return {"hub": self.repository, "commit": self.commit}


def parse_source(text: str) -> HubSource | None:
    """Returns the repository and revision, or None if `text` cannot be a hub id."""
    match = _SOURCE.fullmatch(text)
    if match is None or text.endswith(".nemo"):
        return None
    return HubSource(match[1], match[2])


def fetch(source: HubSource, wanted: str | None = None) -> HubCheckpoint:
    """Downloads what the hub's cache lacks of a checkpoint.

    wanted: "nemo" or "transformers"; None prefers Transformers format where its model is supported. Raises
    ModelNotFoundError if there is no such repository, revision or file, or no network; OutputError if the disk is too
    small.
    """
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        checkpoint = _fetch(source, wanted)
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError) as error:
        raise ModelNotFoundError(
            f"{source}: no such file or directory, and it cannot be fetched from the Hugging Face hub "
            f"({_first_line(error)}); accepted: ORGANIZATION/NAME[@REVISION]"
        ) from error
    if source.revision is None:
        _log.warning("%s names no revision, so the model may change; this one is %s", source, checkpoint.source)
    return checkpoint


def _fetch(source: HubSource, wanted: str | None) -> HubCheckpoint:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError

    if source.is_pinned:
        with contextlib.suppress(LocalEntryNotFoundError):  # a commit never changes, so the hub need not be asked
            return _cached(source, wanted)
    try:
        listed = snapshot_download(source.repository, revision=source.revision, dry_run=True)
    except DryRunError as error:
        if isinstance(error.__cause__, _answers()):
            raise error.__cause__ from error
        return _cached(source, wanted)  # no network
    files = {file.filename: file for file in listed}
    kind = None
    if CONFIG in files:
        config = hf_hub_download(source.repository, CONFIG, revision=files[CONFIG].commit_hash)
        kind = model_type(Path(config).parent)
    format_, names = _choose(source, list(files), wanted, kind)
    missing = [files[name] for name in names if files[name].will_download]
    _check_disk(source, sum(file.file_size or 0 for file in missing))
    snapshot = Path(snapshot_download(source.repository, revision=source.revision, allow_patterns=[*names, CARD_FILE]))
    if snapshot.name != files[names[0]].commit_hash:
        raise CheckpointError(f"{source}: was changed during the download; start again, or name a commit")
    return _checkpoint(source, snapshot, format_)


def _cached(source: HubSource, wanted: str | None) -> HubCheckpoint:
    """The revision in the cache, complete; LocalEntryNotFoundError if it has neither format."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for format_ in [wanted] if wanted else FORMATS:
        with contextlib.suppress(LocalEntryNotFoundError):
            patterns = list(_PATTERNS[format_])
            snapshot = Path(
                snapshot_download(
                    source.repository, revision=source.revision, allow_patterns=patterns, local_files_only=True
                )
            )
            if format_ == TRANSFORMERS and model_type(snapshot) in MODEL_TYPES and any(snapshot.glob("*.safetensors")):
                return _checkpoint(source, snapshot, format_)
            if format_ == NEMO and len(list(snapshot.rglob("*.nemo"))) == 1:
                return _checkpoint(source, snapshot, format_)
    raise LocalEntryNotFoundError("no network, and the hub's cache does not have it")


def _choose(source: HubSource, files: list[str], wanted: str | None, kind: str | None) -> tuple[str, list[str]]:
    """The format, and the names of its files."""
    is_supported = kind in MODEL_TYPES
    format_ = wanted or (TRANSFORMERS if is_supported else NEMO)
    names = [name for name in files if any(fnmatch.fnmatch(name, pattern) for pattern in _PATTERNS[format_])]
    if format_ == TRANSFORMERS and is_supported:
        return format_, names
    if format_ == NEMO and len(names) == 1:
        return format_, names
    nemo = ", ".join(sorted(name for name in files if name.endswith(".nemo"))) or "none"
    raise ModelNotFoundError(
        f"{source}: accepted: a repository with one .nemo file; found: {nemo}; or with a model in Transformers format "
        f"of type {' or '.join(MODEL_TYPES)}; found: {kind or 'none'}"
    )


def _checkpoint(source: HubSource, snapshot: Path, format_: str) -> HubCheckpoint:
    path = snapshot if format_ == TRANSFORMERS else next(snapshot.rglob("*.nemo"))
    return HubCheckpoint(path, format_, source.repository, snapshot.name)


def _check_disk(source: HubSource, needed_bytes: int) -> None:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        raise OutputError(
            f"{source}: the download has {needed_bytes / 1e6:.0f} MB, and {existing} has {free_bytes / 1e6:.0f} MB "
            "free; free some, or set HF_HOME to a folder of another disk"
        )


def _answers() -> tuple[type[Exception], ...]:
    """Errors by which the hub itself says that it will not send the files."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    return RepositoryNotFoundError, RevisionNotFoundError  # a gated repository is one that is not found


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line]
    kind = type(error).__name__
    return f"{kind}: {lines[0].removeprefix('Got: ').rstrip('.')}" if lines else kind
