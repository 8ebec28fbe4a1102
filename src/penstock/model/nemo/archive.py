"""Reads a .nemo file as an untrusted tar.

Nothing is extracted under a name from the archive: members are copied one by one into memory or a private file.
"""

import gzip
import io
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from penstock.errors import CheckpointError

MAX_ARCHIVE_BYTES = 64 << 30
MAX_MEMBER_BYTES = 32 << 30
MAX_HEADER_BYTES = 1 << 20
MAX_MEMBERS = 1000
_COPY_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class HeaderReader(io.FileIO):
    """A file that rejects the huge reads of a forged header, of a tar or a zip file."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads as from any file; CheckpointError for more than MAX_HEADER_BYTES."""
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if size > MAX_HEADER_BYTES:
            raise CheckpointError(f"a header claims {size} bytes; accepted: at most {MAX_HEADER_BYTES}")
        return super().read(size)


class NemoArchive:
    """The plain files of a .nemo file (tar or gzipped tar), every member checked. A context manager.

    `scratch` is an existing directory where a gzipped archive is decompressed. Raises CheckpointError for anything but
    plain files and directories with relative, unique names.
    """

    def __init__(self, path: Path, scratch: Path):
        try:
            self._file = HeaderReader(_plain_tar(path, scratch))
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror or error}") from error
        try:
            self._members = self._safe_members()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "NemoArchive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Names of the plain files, without a leading `./`."""
        return list(self._members)

    def read(self, name: str, max_bytes: int) -> bytes:
        """Returns the bytes of one member of at most `max_bytes`."""
        target = io.BytesIO()
        self.copy(name, target, max_bytes)
        return target.getvalue()

    def copy(self, name: str, target: BinaryIO, max_bytes: int = MAX_MEMBER_BYTES) -> None:
        """Writes the bytes of one member of at most `max_bytes` to `target`."""
        if name not in self._members:
            raise CheckpointError(f"member {name} is missing; found: {', '.join(self.names) or 'nothing'}")
        offset, remaining = self._members[name]
        if remaining > max_bytes:
            raise CheckpointError(f"member {name} has {remaining} bytes; accepted: at most {max_bytes}")
        self._file.seek(offset)
        while remaining:
            block = self._file.read(min(remaining, _COPY_BYTES))
            if not block:
                raise CheckpointError(f"member {name} is truncated: {remaining} bytes are missing")
            remaining -= len(block)
            target.write(block)

    def _safe_members(self) -> dict[str, tuple[int, int]]:
        """Returns offset and size of every plain file by name."""
        files: dict[str, tuple[int, int]] = {}
        seen: set[str] = set()
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    name = _safe_name(member)
                    if name in seen:
                        raise CheckpointError(f"member {name} occurs twice")
                    seen.add(name)
                    if len(seen) > MAX_MEMBERS:
                        raise CheckpointError(f"more than {MAX_MEMBERS} members")
                    if member.isreg():
                        files[name] = (member.offset_data, member.size)
                self._check_end(tar.offset)
        except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"not a tar archive, or a truncated one: {error}") from error
        return files

    def _check_end(self, offset: int) -> None:
        """Accepts only zeros after the last member: tarfile takes a header with a wrong checksum for the end, too."""
        self._file.seek(offset)
        block = self._file.read(tarfile.BLOCKSIZE)
        is_end = len(block) == tarfile.BLOCKSIZE
        while block and is_end:
            is_end = not block.strip(b"\0")
            block = self._file.read(_COPY_BYTES)
        if not is_end:
            raise CheckpointError(f"truncated, or the header of a member is broken, at byte {offset}")


def _safe_name(member: tarfile.TarInfo) -> str:
    """Returns the normalized name of a member; raises CheckpointError if the member is unsafe."""
    shown = repr(member.name)
    if not (member.isdir() or (member.isreg() and not member.issparse())):
        raise CheckpointError(f"member {shown} is a link, a device or of another kind; accepted: plain files")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise CheckpointError(f"member {shown} points outside of the archive; accepted: relative names without '..'")
    if not 0 <= member.size <= MAX_MEMBER_BYTES:
        raise CheckpointError(f"member {shown} has {member.size} bytes; accepted: at most {MAX_MEMBER_BYTES}")
    return str(path)


def _plain_tar(path: Path, scratch: Path) -> Path:
    """Returns `path`, or a decompressed copy in `scratch` if it is gzipped."""
    with path.open("rb") as file:
        if file.read(len(_GZIP_MAGIC)) != _GZIP_MAGIC:
            return path
    plain = scratch / "archive.tar"
    max_bytes = min(MAX_ARCHIVE_BYTES, shutil.disk_usage(scratch).free)
    written = 0
    try:
        with gzip.open(path) as source, plain.open("wb") as target:
            while block := source.read(_COPY_BYTES):
                written += len(block)
                if written > max_bytes:
                    raise CheckpointError(f"decompresses to more than {max_bytes} bytes")
                target.write(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CheckpointError(f"broken or truncated gzip data: {error}") from error
    return plain
