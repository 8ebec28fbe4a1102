"""CPU threads, memory and device of a process. Called by commands and the server's stages, never on import.

torch is imported inside functions, so that a command's help does not wait for it.
"""

import contextlib
import ctypes
import gc
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
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

_MOUNT = re.compile(r"^(?:\S+ ){3}(\S+) (\S+) .*? - (cgroup2?) \S* (\S+)$", re.MULTILINE)
"""A line of /proc/self/mountinfo: the group at the mount's top, the mount point, the version, and the controllers."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_ROOT = Path("/")


def prepare_process(threads: int) -> None:
    """Sets torch's threads and keeps freed memory within the process.

    By default glibc returns every block above 128 KiB to the system when it is freed, so that each step pays again for
    every page of its activations: at 32 streams that is half of an encoder step.
    """
    import torch

    torch.set_num_threads(threads)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc: another allocator with other habits
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


def cpu_seconds() -> float:
    """CPU time of this process and its children so far, ended and running ones."""
    running_s = 0.0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            running_s += sum(child.cpu_times()[:2])
    return sum(os.times()[:4]) + running_s


def module_command(name: str) -> list[str]:
    """The command that runs a module as `python -m` does, but without the current directory on Python's path.

    That directory may be a checkpoint's, of which nothing is executed.
    """
    path = "import runpy, sys; sys.path[:] = filter(None, sys.path)"
    return [sys.executable, "-c", f"{path}; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"]


def core_count(root: Path = _ROOT) -> int:
    """Cores that this process may use: of its affinity, which includes cpusets, and within its groups' quotas."""
    cores = float(len(os.sched_getaffinity(0)))
    for group in _limiting_groups("cpu", root):
        quota = _numbers(group / "cpu.max") or _numbers(group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        if len(quota) == 2 and min(quota) > 0:  # -1 stands for none
            cores = min(cores, quota[0] / quota[1])
    return max(1, math.floor(cores))


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Memory that this process and its children can still get: the machine's, and within its control groups."""
    available: float = psutil.virtual_memory().available
    for group in _limiting_groups("memory", root):
        statistics = _counters(group / "memory.stat")
        limits = [statistics.get("hierarchical_memory_limit", math.inf)]  # of version 1, also by groups out of sight
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits += [limit for name in names for limit in _numbers(group / name) if limit >= 0]
        used = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes") or [0]
        # Cached files count as used, but make room. Version 1 has sums with the groups below, named "total_...".
        files = ("active_file", "inactive_file")
        cached = sum(statistics.get(f"total_{name}", statistics.get(name, 0)) for name in files)
        available = min([available, *(limit - used[0] + cached for limit in limits)])
    return max(int(available), 0)


def memory_kills(root: Path = _ROOT) -> int:
    """Processes of this process's control group that the kernel has killed for lack of memory: its `oom_kill`."""
    names = ("memory.events", "memory.oom_control")
    files = [_counters(group / name) for _, group in _own_groups("memory", root) for name in names]
    return max((counters.get("oom_kill", 0) for counters in files), default=0)


def describe_end(status: int | None, kills_before: int) -> str:
    """Says how a process ended: "ended by SIGKILL for lack of memory (oom_kill 4 -> 5)", "ended with exit status 3".

    status: as `subprocess.Popen.returncode`, None if it is not known; kills_before: `memory_kills` of an earlier time.
    """
    ends: dict[int | None, str] = {None: "", **{-number: f" by {number.name}" for number in signal.Signals}}
    kills = memory_kills() if status in (None, -signal.SIGKILL) else 0
    lack = f" for lack of memory (oom_kill {kills_before} -> {kills})" if kills > kills_before else ""
    return f"ended{ends.get(status, f' with exit status {status}')}{lack}"


def _limiting_groups(controller: str, root: Path) -> Iterator[Path]:
    """Directories of this process's control groups, and of all groups above them that it can see."""
    for top, own in _own_groups(controller, root):
        yield from (group for group in (own, *own.parents) if group.is_relative_to(top))


def _own_groups(controller: str, root: Path) -> Iterator[tuple[Path, Path]]:
    """Top directory and this process's group of each mount of control groups, of both versions.

    Where no mount has the group at its name, as in a container without a namespace of its own, it is the one that lists
    this process, else the mount's top.
    """
    lines = [line.split(":", 2) for line in read_system_file(root / "proc/self/cgroup").splitlines()]
    paths = {name: PurePosixPath(line[2]) for line in lines if len(line) == 3 for name in line[1].split(",")}
    mounts = _MOUNT.findall(read_system_file(root / "proc/self/mountinfo"))
    for version, name in (("cgroup", controller), ("cgroup2", "")):
        found = []
        for *places, kind, options in mounts:
            if name in paths and kind == version and name in ("", *options.split(",")):
                part, point = (_OCTAL.sub(lambda code: chr(int(code[1], 8)), place) for place in places)
                inner = paths[name].relative_to(part) if paths[name].is_relative_to(part) else PurePosixPath("..")
                found.append((root / point.lstrip("/"), inner))
        named = [(top, top / inner) for top, inner in found if ".." not in inner.parts and (top / inner).is_dir()]
        yield from named or [(top, group) for top, _ in found for group in _listing_groups(top) or [top]]


def _listing_groups(top: Path) -> list[Path]:
    """The groups below a mount point that list this process."""
    return [Path(each) for each, _, _ in os.walk(top) if os.getpid() in _numbers(Path(each, "cgroup.procs"))]


def _numbers(*files: Path) -> list[int]:
    """The numbers in files; none where one of them is missing or has anything else, as "max"."""
    try:
        return [int(word) for file in files for word in read_system_file(file).split()]
    except ValueError:
        return []


def _counters(file: Path) -> dict[str, int]:
    """The numbers in a file by their names; none if it is missing."""
    return {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", read_system_file(file), re.MULTILINE)}


def read_system_file(file: Path) -> str:
    """Reads a file of the system; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def trim_heap() -> None:
    """Returns freed memory to the system. Loading a large model leaves gaps of freed temporaries between its weights,
    half of their size in all."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def use_huge_pages() -> None:
    """Moves this process's memory to huge pages, of which a CPU needs fewer addresses to read all weights in a step:
    with one stream it takes a tenth less time. Does nothing before Linux 6.1."""
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
    if tensor.device == device:
        return tensor
    if device.type != "cuda" or not tensor.is_cpu:
        return tensor.to(device, non_blocking=True)
    # The allocator keeps pinned memory from being used again before the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)
