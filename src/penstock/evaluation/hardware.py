"""What a figure was measured on, in words."""

import os
import platform
from pathlib import Path


def describe_hardware(device: str = "cpu") -> str:
    """For example "Intel Xeon at 2.5 GHz, 2 cores, 8 GiB"; with the GPU's name in front where `device` is one."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    host = f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB"
    if not device.startswith("cuda"):
        return host
    import torch

    return f"{torch.cuda.get_device_name(device)}; {host}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
