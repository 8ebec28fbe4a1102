"""CPU threads, memory and device of a process. Called by commands and the server's stages, never on import.

torch is imported inside functions, so that a command's help does not wait for it.
"""

import contextlib
import ctypes
import gc
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from penstock.errors import DeviceLostError, SettingError

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BLOCK_BYTES = 1 << 30

_MADV_COLLAPSE = 25  # mman.h
_HUGE_PAGE_BYTES = 1 << 21
_PRIVATE_MEMORY = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)
"""A line of a process's map of memory: a region of its own, without a file."""

_CONTROL_GROUP = Path("/sys/fs/cgroup")
_GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat"),  # version 2
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),  # version 1
)
"""Limit, use and statistics of the memory of a control group."""


def prepare_process(threads: int) -> None:
    """Sets torch's threads and keeps freed memory within the process.

    By default glibc returns every block above 128 KiB to the system when it is freed, so that each step pays again for
    every page of its activations: at 32 streams that is half of an encoder step (docs/internals/log.md).
    """
    import torch

    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc: another allocator with other habits
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


def module_command(name: str) -> list[str]:
    """The command that runs a module as `python -m` does, but without the current directory on Python's path.

    That directory may be a checkpoint's, of which nothing is executed.
    """
    path = "import runpy, sys; sys.path[:] = filter(None, sys.path)"
    return [sys.executable, "-c", f"{path}; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"]


def available_memory_bytes() -> int:
    """Memory that this process and its children can still get: the machine's, and within its control group."""
    available = int(psutil.virtual_memory().available)
    for limit, used, statistics in _GROUP_FILES:
        try:
            left = int((_CONTROL_GROUP / limit).read_text()) - int((_CONTROL_GROUP / used).read_text())
            cached = dict(line.split() for line in (_CONTROL_GROUP / statistics).read_text().splitlines())
        except (OSError, ValueError):  # no control group of this version, or its limit is "max"
            continue
        # Cached files count as used, but make room.
        available = min(available, left + int(cached.get("active_file", 0)) + int(cached.get("inactive_file", 0)))
    return max(available, 0)


def trim_heap() -> None:
    """Returns freed memory to the system. Loading a large model leaves gaps of freed temporaries between its weights,
    half of their size in all (docs/internals/log.md)."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def use_huge_pages() -> None:
    """Moves this process's memory to huge pages, of which a CPU needs fewer addresses to read all weights in a step:
    with one stream it takes a tenth less time (docs/internals/log.md). Does nothing before Linux 6.1."""
    with contextlib.suppress(OSError, AttributeError):  # another system
        advise = ctypes.CDLL("libc.so.6").madvise
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for region in _PRIVATE_MEMORY.finditer(Path("/proc/self/maps").read_text()):
            first, behind = (int(address, 16) for address in region.groups())
            start, end = -(-first // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, behind // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
            if start < end:
                advise(start, end - start, _MADV_COLLAPSE)  # skips pages that hold nothing yet


def freeze_loaded() -> None:
    """Lets the garbage collector forget all that has been loaded: traversing it again and again stalled a server
    for 0.4 s at a time. Call it last of all, before the first request."""
    gc.collect()
    gc.freeze()


def check_device(device: "str | torch.device", source: str = "device") -> None:
    """Raises SettingError if torch cannot use the device here; source: name of the flag or argument."""
    import torch

    if str(device) == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if str(device) in ("cuda", *(f"cuda:{index}" for index in range(count))) and count:
        return
    if count:
        accepted = f"cpu, cuda, cuda:NUMBER up to {count - 1}"
    elif torch.version.cuda is None:
        accepted = "cpu; this build of torch has no CUDA"
    else:
        accepted = "cpu; torch finds no CUDA device here"
    raise SettingError(f"{source} is {str(device)!r}; accepted: {accepted}")


class _Products:
    """The process's setting, as torch keeps it: products of float32 on CUDA devices may be TF32."""

    allow_tf32 = False


def prepare_device(device: "str | torch.device", allow_tf32: bool | None = None) -> "torch.device":
    """Makes the device this process's current one and returns it; SettingError if torch cannot use it here.

    allow_tf32: whether products of float32 keep ten bits of each number, from now on in this process; None leaves it as
    it was last set, at first off: cuDNN convolutions use TF32 by default, and some images enable it for matrix
    products, and the encoder's output then differs from the CPU's by more than 1e-4. Sums of products of 16 bits are
    float32 in any case.
    """
    import torch

    check_device(device)
    chosen = torch.device(device)
    if chosen.type == "cuda":
        if allow_tf32 is not None:
            _Products.allow_tf32 = allow_tf32
        matmul = torch.backends.cuda.matmul
        torch.backends.cudnn.allow_tf32 = matmul.allow_tf32 = _Products.allow_tf32
        matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
        if chosen.index is not None:
            torch.cuda.set_device(chosen)
    return chosen


def check_device_works(device: "str | torch.device", error: Exception) -> None:
    """Raises DeviceLostError if the device is unusable after `error`, which a step raised; waits for the device.

    A failed assertion or an illegal address on the device ends its CUDA context: every later call fails. Running out of
    memory or a wrong shape does not.
    """
    import torch

    if torch.device(device).type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        raise DeviceLostError(f"{device} cannot be used by this process any more: {error}") from error


def send_to_device(tensor: "torch.Tensor", device: "torch.device") -> "torch.Tensor":
    """Copies a tensor on the host to the device through pinned memory, without a wait for the device's queued work."""
    if device.type != "cuda" or not tensor.is_cpu:
        return tensor.to(device, non_blocking=True)
    # The allocator keeps pinned memory from being used again before the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)
