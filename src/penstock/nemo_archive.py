"""A .nemo file as an untrusted tar: which members it holds, and their bytes. Knows nothing of models.

Nothing is ever extracted by the names in the archive; members are read one by one, into memory or into a file of ours.
"""

import gzip
import io
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from penstock.errors import CheckpointError

LARGEST_ARCHIVE_BYTES = 64 << 30
LARGEST_MEMBER_BYTES = 32 << 30
LARGEST_HEADER_BYTES = 1 << 20
MOST_MEMBERS = 1000
_COPY_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class _HeaderReader(io.FileIO):
    """A file that refuses the huge reads that a forged tar header asks for."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= LARGEST_HEADER_BYTES:
            raise CheckpointError(f"a tar header asks for {size} bytes; accepted: at most {LARGEST_HEADER_BYTES}")
        return super().read(size)


class NemoArchive:
    """The plain files of a .nemo, tar or gzipped tar, after every member was found safe.

    A context manager. `scratch` is an existing directory of ours; a gzipped archive is unpacked to one tar there.
    Raises CheckpointError for anything but plain files and directories with relative names that occur once.
    """

    def __init__(self, path: Path, scratch: Path):
        try:
            self._file = _HeaderReader(_plain_tar(path, scratch))
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

    def read(self, name: str, largest_bytes: int) -> bytes:
        """The bytes of one small member."""
        target = io.BytesIO()
        self.copy(name, target, largest_bytes)
        return target.getvalue()

    def copy(self, name: str, target: BinaryIO, largest_bytes: int = LARGEST_MEMBER_BYTES) -> None:
        """Writes the bytes of one member to `target`."""
        if name not in self._members:
            raise CheckpointError(f"member {name} is missing; found: {', '.join(self.names) or 'nothing'}")
        offset, remaining = self._members[name]
        if remaining > largest_bytes:
            raise CheckpointError(f"member {name} has {remaining} bytes; accepted: at most {largest_bytes}")
        self._file.seek(offset)
        while remaining:
            block = self._file.read(min(remaining, _COPY_BYTES))
            if not block:
                raise CheckpointError(f"member {name} is truncated: {remaining} bytes are missing")
            remaining -= len(block)
            target.write(block)

    def _safe_members(self) -> dict[str, tuple[int, int]]:
        """Offset and size of every plain file, by name."""
        files: dict[str, tuple[int, int]] = {}
        seen: set[str] = set()
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    name = _safe_name(member)
                    if name in seen:
                        raise CheckpointError(f"member {name} occurs twice")
                    seen.add(name)
                    if len(seen) > MOST_MEMBERS:
                        raise CheckpointError(f"more than {MOST_MEMBERS} members")
                    if member.isreg():
                        files[name] = (member.offset_data, member.size)
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"not a tar archive, or a truncated one: {error}") from error
        return files


def _safe_name(member: tarfile.TarInfo) -> str:
    """The normal form of a member's name; raises CheckpointError if the member is unsafe in any way."""
    shown = repr(member.name)
    if not (member.isdir() or (member.isreg() and not member.issparse())):
        raise CheckpointError(f"member {shown} is a link, a device or of another kind; accepted: plain files")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise CheckpointError(f"member {shown} points outside of the archive; accepted: relative names without '..'")
    if not 0 <= member.size <= LARGEST_MEMBER_BYTES:
        raise CheckpointError(f"member {shown} has {member.size} bytes; accepted: at most {LARGEST_MEMBER_BYTES}")
    return str(path)


def _plain_tar(path: Path, scratch: Path) -> Path:
    """`path` itself, or its decompressed copy in `scratch` if it is gzipped."""
    with path.open("rb") as file:
        if file.read(len(_GZIP_MAGIC)) != _GZIP_MAGIC:
            return path
    plain = scratch / "archive.tar"
    largest_bytes = min(LARGEST_ARCHIVE_BYTES, shutil.disk_usage(scratch).free)
    written = 0
    try:
        with gzip.open(path) as source, plain.open("wb") as target:
            while block := source.read(_COPY_BYTES):
                written += len(block)
                if written > largest_bytes:
                    raise CheckpointError(f"unpacks to more than {largest_bytes} bytes")
                target.write(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CheckpointError(f"broken or truncated gzip data: {error}") from error
    return plain
