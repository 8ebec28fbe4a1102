"""Audio files that appear in directories while a command runs."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.transcription.audio_inputs import AudioInput


class Found(NamedTuple):
    """One look into the directories."""

    files: Sequence[AudioInput]
    """All audio files."""
    new: Sequence[AudioInput]
    """Those that are complete and were not new before."""


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


def _state(path: str) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
