"""The audio that a command is given: files, directories, lists and manifests, and files that appear while it runs."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from penstock.errors import AudioError, ManifestError, SettingError
from penstock_common.audio.formats import SUFFIXES
from penstock_common.audio.sound_file import STDIN

_NAMED_SKIPS = 5


class AudioInput(NamedTuple):
    """One file to transcribe."""

    path: str
    name: PurePath
    """Place among the results: the path as given or within its directory; of an absolute path the last part."""


def find_audio(
    arguments: Sequence[str],
    file_list: str | None,
    manifest: str | None,
    note: Callable[[str], None] = lambda text: None,
    may_be_empty: bool = False,
) -> list[AudioInput]:
    """The files of all arguments, of the list (one path per line, `-`: standard input) and of the NeMo manifest.

    note: called with a line that names what a directory has beside audio. Raises PenstockError for a directory without
    audio, unless it `may_be_empty`, and for a list or manifest that cannot be used.
    """
    if "" in arguments:  # as a path it would be the current directory
        raise SettingError("AUDIO is empty; accepted: a file, a directory, or - for standard input")
    named = [*arguments, *(_listed(file_list) if file_list else [])]
    # Unlike a Path, os.path takes names that are too long or not allowed for those of no directory.
    found = [
        each
        for path in named
        for each in (_of_directory(Path(path), note, may_be_empty) if os.path.isdir(path) else [_file(path)])
    ]
    return found + (_of_manifest(Path(manifest)) if manifest else [])


class Found(NamedTuple):
    """One look into the directories."""

    files: Sequence[AudioInput]
    """All audio files."""
    new: Sequence[AudioInput]
    """Files that are complete and were not new before."""


class FolderWatch:
    """Finds files that are complete: of the same size and time of change in two looks, one after the other."""

    def __init__(self, find: Callable[[], Sequence[AudioInput]]):
        """find: all audio files of the directories."""
        self._find = find
        self._last: dict[str, tuple[int, int]] = {}
        """State of each file at the last look."""
        self._taken: dict[str, tuple[int, int]] = {}
        """State of each file when it was new; a changed one is new again."""

    def look(self) -> Found:
        """Looks once; the caller waits between two looks."""
        files = self._find()
        now = {each.path: state for each in files if (state := _state(each.path)) is not None}
        new = [
            each
            for each in files
            if each.path in now and now[each.path] == self._last.get(each.path) != self._taken.get(each.path)
        ]
        self._last = now
        self._taken.update({each.path: now[each.path] for each in new})
        return Found(files, new)


def _file(path: str, folder: Path = Path()) -> AudioInput:
    if path == STDIN:
        return AudioInput(path, PurePath("stdin"))
    name = PurePath(path)
    is_below = not name.is_absolute() and ".." not in name.parts
    return AudioInput(str(folder / path), name if is_below else PurePath(name.name))


def _of_directory(directory: Path, note: Callable[[str], None], may_be_empty: bool) -> list[AudioInput]:
    """Audio files in the directory and those below it, without hidden ones, by name."""
    names = sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    visible = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    found = [AudioInput(str(directory / name), name) for name in visible if name.suffix.lower() in SUFFIXES]
    if not found and not may_be_empty:
        raise AudioError(f"{directory}: the directory has no audio files ({' '.join(SUFFIXES)})")
    if skipped := [str(name) for name in visible if name.suffix.lower() not in SUFFIXES]:
        others = len(skipped) - _NAMED_SKIPS
        text = ", ".join(skipped[:_NAMED_SKIPS]) + (f" and {others} more" if others > 0 else "")
        files = "1 file of another format" if len(skipped) == 1 else f"{len(skipped)} files of other formats"
        note(f"{directory}: skipped {files}: {text}")
    return found


def _listed(file_list: str) -> list[str]:
    try:
        text = sys.stdin.read() if file_list == STDIN else Path(file_list).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingError(f"--files-from {file_list}: {reason}; accepted: a file with one path per line") from error
    return [line for line in text.split("\n") if line.strip()]


def _of_manifest(manifest: Path) -> list[AudioInput]:
    """Relative paths of a manifest start at its folder."""
    try:
        return list(_entries(manifest))
    except OSError as error:
        raise ManifestError(f"{manifest}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ManifestError(f"{manifest}: not a manifest, JSON lines with audio_filepath expected: {error}") from error


def _entries(manifest: Path) -> Iterator[AudioInput]:
    for line in manifest.read_text(encoding="utf-8-sig").split("\n"):  # JSON strings may have other line ends
        if line.strip():
            path = json.loads(line)["audio_filepath"]
            if not isinstance(path, str) or not path:
                raise TypeError(f"audio_filepath is {path!r}")
            yield _file(path, manifest.parent)


def _state(path: str) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
