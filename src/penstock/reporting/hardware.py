"""What a figure was measured on, in words."""

import os
import platform
from pathlib import Path


def describe_hardware(device: str = "cpu") -> str:
    """For example "Intel Xeon at 2.5 GHz, 2 cores, 8 GiB"; with the GPU's name in front where `device` is one."""
    host = f"{cpu_name()}, {core_count()} cores, {memory_gib():.0f} GiB"
    if not device.startswith("cuda"):
        return host
    import torch

    return f"{torch.cuda.get_device_name(device)}; {host}"


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """Of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def cpu_name() -> str:
    """The processor's model, or its kind where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
