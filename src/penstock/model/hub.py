"""Fetches a checkpoint from the Hugging Face hub: one revision, one format, and only the files it needs.

`huggingface_hub` shows progress on a terminal, resumes a download that was cut, and keeps files in its cache, which
answers without a network, too (HF_HUB_OFFLINE=1).
"""

import contextlib
import errno
import fnmatch
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import CheckpointError, ModelNotFoundError, OutputError, PenstockError
from penstock.model.card import CARD_FILE
from penstock.model.transformers.files import CONFIG, MODEL_TYPES, PATTERNS, model_type

NEMO, TRANSFORMERS = "nemo", "transformers"
FORMATS = (TRANSFORMERS, NEMO)
_PATTERNS = {TRANSFORMERS: PATTERNS, NEMO: ("*.nemo",)}
_SOURCE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_log = logging.getLogger(__name__)
_XET_LIMITS = {"HF_XET_CLIENT_READ_TIMEOUT": "10s", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "2"}
"""Files in Xet's storage come through another client: three tries are `SILENCE_S`."""
SILENCE_S = 30.0
"""A download ends when the hub has sent nothing for that time."""


class SilentHubError(Exception):
    """The hub sends nothing. `huggingface_hub` does not know it, and so does not try again."""


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
    try:
        with _limits():
            checkpoint = _fetch(source, wanted)
    except PenstockError:
        raise
    except Exception as error:  # a page in place of a listing is a ValueError, a KeyError, ...
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"{source}: the download has filled the disk ({_first_line(error)})") from error
        raise ModelNotFoundError(
            f"{source}: no such file or directory, and it cannot be fetched from the Hugging Face hub "
            f"({_first_line(error)}); accepted: ORGANIZATION/NAME[@REVISION]. HF_HUB_OFFLINE=1 takes what is "
            "cached, HF_ENDPOINT names another hub"
        ) from error
    if source.revision is None:
        _log.warning("%s names no revision, so the model may change; this one is %s", source, checkpoint.source)
    return checkpoint


def _fetch(source: HubSource, wanted: str | None) -> HubCheckpoint:
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        DryRunError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )  # fmt: skip

    if source.is_pinned:
        with contextlib.suppress(LocalEntryNotFoundError):  # a commit never changes, so the hub need not be asked
            return _cached(source, wanted)
    if not constants.HF_HUB_OFFLINE:
        _log.warning("fetching %s from %s", source, _host())
    try:
        listed = snapshot_download(source.repository, revision=source.revision, dry_run=True)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, DryRunError) else error
        if isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError):  # also a gated repository
            raise cause from error
        try:
            return _cached(source, wanted)
        except LocalEntryNotFoundError:
            if cause is None or isinstance(cause, OfflineModeIsEnabled):
                raise
            raise cause from error
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
    if is_supported if format_ == TRANSFORMERS else len(names) == 1:
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


def _host() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT.rpartition("://")[2].rpartition("@")[2]


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Ends silent downloads, within the client that the application has chosen, and restores its settings."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    given = {name: value for name, value in _XET_LIMITS.items() if name not in os.environ}
    factory, session, _http._GLOBAL_CLIENT = _http._GLOBAL_CLIENT_FACTORY, _http._GLOBAL_CLIENT, None
    set_client_factory(partial(_client, factory))
    os.environ.update(given)
    try:
        yield
    finally:
        set_client_factory(factory)
        _http._GLOBAL_CLIENT = session
        for name in given:
            os.environ.pop(name, None)


def _client(factory: Callable[[], Any]) -> Any:
    """The client of `huggingface_hub`, of httpx or httpx2. A request ends after `SILENCE_S` without a byte.

    No answer sets how long to wait for the next try: five in some 20 seconds.
    """
    client = factory()
    timeout = import_module(type(client).__module__.partition(".")[0]).TimeoutException
    send = client.send

    @contextlib.contextmanager
    def without_silence() -> Iterator[None]:
        try:
            yield
        except timeout as error:
            raise SilentHubError(f"{_host()} has sent nothing for {SILENCE_S:g} s") from error

    def send_watched(request: Any, **options: Any) -> Any:
        limits = dict.fromkeys(("read", "write", "pool"), SILENCE_S)
        request.extensions["timeout"] = limits | {"connect": SILENCE_S / 4}  # for each address of the host
        with without_silence():
            response: Any = send(request, **options)
        for header in ("retry-after", "ratelimit"):
            response.headers.pop(header, None)
        iter_raw = response.iter_raw

        def iter_watched(*args: Any, **kwargs: Any) -> Iterator[bytes]:
            with without_silence():
                yield from iter_raw(*args, **kwargs)

        response.iter_raw = iter_watched
        return response

    client.send = send_watched
    return client


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line]
    kind = type(error).__name__
    return f"{kind}: {lines[0].removeprefix('Got: ').rstrip('.')}" if lines else kind
