"""Files of the operator, such as keys: read only where that ends, and again when they have changed."""

import errno
import os
import stat
from pathlib import Path

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
        """As UTF-8, with or without a byte order mark. ValueError for other bytes."""
        return self.content.decode("utf-8-sig")
