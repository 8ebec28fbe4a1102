"""Files of the operator, such as keys: read only where that ends, and again when they have changed."""

import errno
import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
Value = TypeVar("Value")
_MAX_BYTES = 4 << 20
"""More than any of them has: 8,192 keys with their quotas have 1.5 MB."""
_KINDS = {"d": "a directory", "p": "a FIFO", "s": "a socket"}
"""By the first letter of `ls -l`."""


def read_file(path: str | Path) -> bytes:
    """The content of a regular file. OSError for any other, such as a FIFO, which would wait for a writer."""
    _check(os.stat(path), path)  # an open device may do anything
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        _check(os.fstat(file.fileno()), path)
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES:,} bytes", str(path))
    return content


def _check(status: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "a device")
        raise OSError(errno.EINVAL, f"it is {kind}; accepted: a regular file", str(path))


class WatchedFile:
    """A file that may change. New content counts once it is read twice, as it may be written just now."""

    def __init__(self, path: str | Path):
        """Reads it. OSError as `read_file`."""
        self.path = path
        self.content = self._last = read_file(path)

    def changed(self) -> bool:
        """True once where `content` is new. Reads the file; OSError as `read_file`."""
        last, self._last = self._last, read_file(self.path)
        if self._last != last or self._last == self.content:
            return False
        self.content = self._last
        return True

    @property
    def text(self) -> str:
        """The content as UTF-8, with or without a byte order mark. ValueError for other bytes."""
        return self.content.decode("utf-8-sig")


class Followed(Generic[Value]):
    """Value of the operator's files. Follows their changes, and keeps the last value that was right."""

    def __init__(self, name: str, paths: Sequence[str | Path], read: Callable[[Sequence[WatchedFile]], Value]):
        """name: in the log and in metrics. read: raises ValueError for wrong contents. OSError as `read_file`."""
        self.name, self.paths = name, paths
        self._files, self._read = [WatchedFile(path) for path in paths], read
        self._used = self._contents()
        self.value = read(self._files)
        self.problem: tuple[str, list[bytes]] | None = None
        """Why the files are not in use as they are now, and what they contain."""
        self.on_rejection: Callable[[], None] = lambda: None
        """Called with each new problem."""

    def refresh(self) -> bool:
        """Reads the files; True once where `value` is new. It may take long."""
        try:
            for file in self._files:
                file.changed()
            if is_new := self._contents() != self._used:
                self.value = self._read(self._files)
                self._used = self._contents()
        except (OSError, ValueError) as error:
            problem = str(error), self._contents()
            if problem != self.problem:
                log.error("%s: the last right content stays in use: %s", self.name, error)
                self.on_rejection()
            self.problem = problem
            return False
        if is_new or self.problem:
            log.info("read %s again", " and ".join(map(str, self.paths)))
        self.problem = None
        return is_new

    def _contents(self) -> list[bytes]:
        return [file.content for file in self._files]
