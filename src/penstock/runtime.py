"""CPU threads and device of a process. Called by commands and the server's stages, never on import.

torch is imported inside functions, so that a command's help does not wait for it.
"""

import ctypes
import gc
from typing import TYPE_CHECKING

from penstock.errors import SettingError

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BLOCK_BYTES = 1 << 30


def prepare_process(threads: int) -> None:
    """Sets torch's threads and keeps freed memory within the process.

    By default glibc returns every block above 128 KiB to the system when it is freed, so that each step pays again for
    every page of its activations: at 32 streams that is half of an encoder step (docs/log.md).
    """
    import torch

    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc: another allocator with other habits
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


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


def prepare_device(device: "str | torch.device") -> "torch.device":
    """Makes the device this process's current one and returns it; SettingError if torch cannot use it here.

    Switches TF32 off: cuDNN convolutions use it by default, and some images enable it for matrix products. It keeps ten
    bits of a number, so the encoder's output would differ from the CPU's by more than 1e-4.
    """
    import torch

    check_device(device)
    chosen = torch.device(device)
    if chosen.type == "cuda":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if chosen.index is not None:
            torch.cuda.set_device(chosen)
    return chosen
