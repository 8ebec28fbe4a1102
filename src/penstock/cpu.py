"""How a process of ours uses the CPU. Called by commands and the server's members, never by importing the library."""

import ctypes
import gc

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BLOCK_BYTES = 1 << 30


def prepare_process(threads: int) -> None:
    """Sets torch's threads and keeps freed memory within the process.

    By default glibc returns every block above 128 KiB to the system when it is freed, so that each step pays again for
    every page of its activations: at 32 streams that is half of an encoder step (docs/log.md).
    """
    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc: another allocator with other habits
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


def freeze_loaded() -> None:
    """Lets the garbage collector forget all that has been loaded: looking through it again and again stalled a server
    for 0.4 s at a time. Call it last of all, before the first request."""
    gc.collect()
    gc.freeze()
