"""Parts of a file as files of their own: the links of a chained Ogg file, and a file with another header."""

import io
from collections.abc import Iterator
from typing import BinaryIO

_PAGE_HEAD_BYTES = 27
_MAX_PAGE_BYTES = 65_307
_BEGIN, _END = 2, 4
"""Flags of a page: the first or the last of its stream (RFC 3533, section 6)."""


class FilePart(io.RawIOBase):
    """The bytes [begin, end) of a file, the first ones replaced by `head`. Closing it leaves the file open."""

    def __init__(self, file: BinaryIO, begin: int = 0, end: int | None = None, head: bytes = b""):
        self._file, self._begin, self._head = file, begin, head
        self._size = (file.seek(0, io.SEEK_END) if end is None else end) - begin
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; less only at the end."""
        left = max(0, self._size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        self._file.seek(self._begin + self._position)
        data = self._file.read(count)
        if self._position < len(self._head):
            head = self._head[self._position :][: len(data)]
            data = head + data[len(head) :]
        self._position += len(data)
        return data


File = BinaryIO | FilePart


def ogg_links(file: File) -> list[int]:
    """Where each link of a chained Ogg file begins: at a stream's first page after pages of other kinds."""
    begins, was_first = [0], True
    for position, head in _ogg_pages(file):
        is_first = bool(head[5] & _BEGIN)
        if is_first and not was_first:
            begins.append(position)
        was_first = is_first
    return begins


def ogg_end(file: File) -> int | None:
    """The position in samples in the last page of an Ogg file, -1 for none; None where that page is cut or not last."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - _MAX_PAGE_BYTES))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    head, segments = page[:_PAGE_HEAD_BYTES], page[_PAGE_HEAD_BYTES:]
    if len(head) < _PAGE_HEAD_BYTES or not head[5] & _END or len(page) < _page_bytes(head, segments):
        return None
    return int.from_bytes(page[6:14], "little", signed=True)


def _ogg_pages(file: File) -> Iterator[tuple[int, bytes]]:
    """The place and the head of each page; pages that are damaged are passed over."""
    position = 0
    while True:
        file.seek(position)
        data = file.read(_PAGE_HEAD_BYTES + 255)
        if not data.startswith(b"OggS"):
            data += file.read(_MAX_PAGE_BYTES)
            offset = data.find(b"OggS")
            if offset < 0:
                if len(data) < 4:
                    return
                position += len(data) - 3
                continue
            position, data = position + offset, data[offset:]
            if len(data) < _PAGE_HEAD_BYTES + 255:
                file.seek(position)
                data = file.read(_PAGE_HEAD_BYTES + 255)
        if len(data) < _PAGE_HEAD_BYTES:
            return
        yield position, data[:_PAGE_HEAD_BYTES]
        position += _page_bytes(data[:_PAGE_HEAD_BYTES], data[_PAGE_HEAD_BYTES:])


def _page_bytes(head: bytes, segments: bytes) -> int:
    """Size of a page; `segments` begins with the table of their sizes."""
    return _PAGE_HEAD_BYTES + head[26] + sum(segments[: head[26]])
