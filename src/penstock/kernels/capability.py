"""Where the kernels can run. Imports the GPU language only when a device asks for it; knows no kernel."""

import importlib
import importlib.util
import os

import torch

from penstock.errors import PenstockError

AUTO, TORCH, FUSED = "auto", "torch", "fused"
KERNELS = (AUTO, TORCH, FUSED)
"""What the option `kernels` may say: fused where the device runs kernels, never, always."""

TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What kernels calculate with."""

_LEAST_CAPABILITY = (8, 0)  # bfloat16 products on tensor cores


def why_unavailable(device: torch.device | str) -> str | None:
    """Why kernels cannot run on `device`, for the log and for errors; None where they can.

    The first call for a CUDA device imports the GPU language, which takes about a second.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return f"kernels run on CUDA devices, not on {device.type}"
    if torch.version.hip is not None:
        return "kernels are not tested on ROCm"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return f"the device's compute capability is below {_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]}"
    return why_no_language()


def available(device: torch.device | str) -> bool:
    """Whether kernels run on `device`; asked once, at construction, never in a step."""
    return why_unavailable(device) is None


def why_no_language() -> str | None:
    """Why the package of the GPU language cannot be used, or None.

    A folder of the same name is no package of it, and must not be taken for one: so it is asked for what we need.
    """
    try:
        language = importlib.import_module("triton.language") if importlib.util.find_spec("triton") else None
    except ImportError as error:
        return f"the package `triton` (the GPU language) does not load: {error}"
    return None if hasattr(language, "dot") else "the package `triton` (the GPU language) is not installed"


def choose(device: torch.device | str, use_kernel: bool | None) -> bool:
    """What an option says (None: as the device allows), checked.

    True on a CPU means the interpreter of the GPU language, which only tests want. ValueError where it cannot be.
    """
    if use_kernel is None:
        return available(device)
    if use_kernel:
        reason = _why_impossible(torch.device(device))
        if reason is not None:
            raise ValueError(f"kernels are asked for, but {reason}")
    return use_kernel


def resolve(kernels: str, device: torch.device | str, dtype: torch.dtype = torch.float32) -> str:
    """What the option `kernels` comes to on `device` for numbers of `dtype`: "torch" or "fused".

    PenstockError for another word, and for "fused" where kernels cannot run.
    """
    if kernels not in KERNELS:
        raise PenstockError(f"kernels {kernels!r} are unknown: one of {', '.join(KERNELS)}")
    if kernels == AUTO:
        return FUSED if dtype in TYPES and available(device) else TORCH
    if kernels == FUSED:
        reason = _why_impossible(torch.device(device))
        if dtype not in TYPES:
            reason = f"they do not calculate in {dtype}"
        if reason is not None:
            raise PenstockError(f'kernels "{FUSED}" cannot be: {reason}')
    return kernels


def _why_impossible(device: torch.device) -> str | None:
    """As `why_unavailable`, but a CPU with the interpreter will do."""
    if device.type != "cpu":
        return why_unavailable(device)
    if os.environ.get("TRITON_INTERPRET") != "1":
        return why_no_language() or why_unavailable(device)
    return why_no_language()
