"""Integers in memory that processes share. Standard library only: a launcher starts without numpy."""

import mmap
import os
from pathlib import Path
from typing import Literal


def shared_cells(count: int, code: Literal["i", "q"], path: Path | None) -> "memoryview[int]":
    """Returns `count` integers, zero at first; code: "i" for 32 bits, "q" for 64.

    path: a file that several processes map; None within one process. One cell is read and written at once.
    """
    size = count * memoryview(bytes(8)).cast(code).itemsize
    if path is None:
        return memoryview(bytearray(size)).cast(code)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # does nothing to a file of that size
        return memoryview(mmap.mmap(descriptor, size)).cast(code)
    finally:
        os.close(descriptor)
