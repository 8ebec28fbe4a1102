"""The audio that a command is given: files, directories, lists and manifests, and files that appear while it runs."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from penstock.errors import AudioError, SettingError
from penstock.frontend.audio_file import FilePart
from penstock.transcription.manifest import Phrases, read_lines
from penstock_common.audio.formats import SUFFIXES
from penstock_common.audio.sound_file import STDIN

_NAMED_SKIPS = 5


class AudioInput(NamedTuple):
    """One file to transcribe, or a part of it."""

    path: str
    name: PurePath
    """Place among the results: the path as given or within its directory; of an absolute path the last part, and as
    many of its folders as tell it apart."""
    offset_s: float | None = None
    """The begin of the part; None for the whole file."""
    stated_s: float | None = None
    """Duration that a manifest states."""
    language: str | None = None
    boosted_phrases: Phrases = ()

    @property
    def part(self) -> FilePart:
        """The file, or the part of it."""
        return FilePart(self.path, self.offset_s, None if self.offset_s is None else self.stated_s)


def find_audio(
    arguments: Sequence[str],
    file_list: str | None,
    manifest: str | None,
    note: Callable[[str], None] = lambda text: None,
    may_be_empty: bool = False,
) -> list[AudioInput]:
    """The files of all arguments, of the list (one path per line, `-`: standard input) and of the NeMo manifest.

    note: called with a line that names what is left out: what a directory has beside audio, and repetitions. Raises
    PenstockError for a directory without audio, unless it `may_be_empty`, and for a list or manifest that cannot be
    used.
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
    return _distinct(found + (list(_of_manifest(manifest)) if manifest else []), note)


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


def _file(path: str, located: str | None = None) -> AudioInput:
    """located: the path as it is opened."""
    if path == STDIN and located is None:
        return AudioInput(path, PurePath("stdin"))
    name = PurePath(os.path.expanduser(path) if located else path)
    is_below = not name.is_absolute() and ".." not in name.parts
    return AudioInput(located or path, name if is_below and name.name else PurePath(name.name or "unnamed"))


def _of_directory(directory: Path, note: Callable[[str], None], may_be_empty: bool) -> list[AudioInput]:
    """Audio files in the directory and those below it, without hidden ones, by name."""
    names = sorted(Path(path).relative_to(directory) for path in _visible_files(directory, note))
    found = [AudioInput(str(directory / name), name) for name in names if name.suffix.lower() in SUFFIXES]
    if not found and not may_be_empty:
        raise AudioError(f"{directory}: the directory has no audio files ({' '.join(SUFFIXES)})")
    if skipped := [str(name) for name in names if name.suffix.lower() not in SUFFIXES]:
        others = len(skipped) - _NAMED_SKIPS
        text = ", ".join(skipped[:_NAMED_SKIPS]) + (f" and {others} more" if others > 0 else "")
        files = "1 file of another format" if len(skipped) == 1 else f"{len(skipped)} files of other formats"
        note(f"{directory}: skipped {files}: {text}")
    return found


def _visible_files(directory: Path, note: Callable[[str], None]) -> Iterator[str]:
    """Follows links to directories, and reads each directory once: at first without links, so that none is a circle."""
    seen: set[str] = set()
    roots = [str(directory)]
    for root in roots:  # grows by links
        for folder, folders, files in os.walk(root, onerror=lambda error: note(f"skipped a directory: {error}")):
            is_new = (real := os.path.realpath(folder)) not in seen
            seen.add(real)
            folders[:] = [name for name in sorted(folders) if is_new and not name.startswith(".")]
            roots += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]
            for path in (os.path.join(folder, name) for name in files if is_new and not name.startswith(".")):
                if os.path.isfile(path) or os.path.islink(path):
                    yield path


def _distinct(inputs: Sequence[AudioInput], note: Callable[[str], None]) -> list[AudioInput]:
    """The inputs without exact repetitions. Files of one name get as much of their folders as tells them apart."""
    once: dict[tuple[Any, ...], AudioInput] = {}
    for each in inputs:
        once.setdefault((os.path.abspath(each.path).replace("//", "/"), *each[2:]), each)
    if count := len(inputs) - len(once):
        note(f"left out {count} repetition{'s' if count > 1 else ''} of the same audio")
    paths: dict[PurePath, set[str]] = {}
    for key, each in once.items():
        paths.setdefault(each.name, set()).add(key[0])
    longer = {name: _longer(name, found) for name, found in paths.items() if len(found) > 1}
    return [each._replace(name=longer.get(each.name, {}).get(key[0], each.name)) for key, each in once.items()]


def _longer(name: PurePath, paths: set[str]) -> dict[str, PurePath]:
    """The name of each path, with folders in front."""
    parts = {path: PurePath(path).parts[1:] for path in paths}
    counts = itertools.count(len(name.parts))
    count = next(n for n in counts if len({each[-n:] for each in parts.values()}) == len(parts))
    return {path: PurePath(*each[-count:]) for path, each in parts.items()}


def _listed(file_list: str) -> list[str]:
    try:
        text = sys.stdin.read() if file_list == STDIN else Path(file_list).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingError(f"--files-from {file_list}: {reason}; accepted: a file with one path per line") from error
    return [line for line in text.split("\n") if line.strip()]


def _of_manifest(manifest: str) -> Iterator[AudioInput]:
    for line in read_lines(manifest):
        yield _file(line.text("audio_filepath"), line.audio.path)._replace(
            offset_s=line.audio.offset_s,
            stated_s=line.stated_s,
            language=line.language,
            boosted_phrases=line.boosted_phrases,
        )


def _state(path: str) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
