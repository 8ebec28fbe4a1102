"""Decides where kernels run. Imports Triton only to check that it loads and runs a kernel."""

import importlib
import logging
import os
from functools import lru_cache

import torch

from penstock.errors import SettingError
from penstock.extras import why_no_triton

AUTO, TORCH, FUSED = "auto", "torch", "fused"
KERNELS = (AUTO, TORCH, FUSED)
"""Values of the setting `kernels`: fused where the device runs kernels, never, always."""

TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Types that kernels calculate in."""

_log = logging.getLogger(__name__)

_MIN_COMPUTE_CAPABILITY = (8, 0)  # bfloat16 products on tensor cores


def resolve(kernels: str, device: torch.device | str, dtype: torch.dtype = torch.float32) -> str:
    """Resolves the setting `kernels` on `device` for values of `dtype` to "torch" or "fused".

    Raises SettingError for an unknown value, and for "fused" where kernels cannot run.
    """
    if kernels not in KERNELS:
        raise SettingError(f"kernels {kernels!r} are unknown: one of {', '.join(KERNELS)}")
    if kernels == AUTO:
        reason = why_unavailable(device)
        if reason is not None and torch.device(device).type == "cuda":
            _warn_once(reason)
        return FUSED if dtype in TYPES and reason is None else TORCH
    if kernels == FUSED:
        reason = why_impossible(device)
        if dtype not in TYPES:
            reason = f"they do not support {dtype}"
        if reason is not None:
            raise SettingError(f'kernels "{FUSED}" are not possible: {reason}')
    return kernels


def available(device: torch.device | str) -> bool:
    """True if kernels run on `device`; checked at construction, never in a step."""
    return why_unavailable(device) is None


def why_unavailable(device: torch.device | str) -> str | None:
    """Returns why kernels cannot run on `device`, or None.

    The first call for a CUDA device imports Triton, compiles a small kernel and runs it, which takes seconds.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return f"kernels run on CUDA devices, not on {device.type}"
    if torch.version.hip is not None:
        return "kernels are not tested on ROCm"
    if torch.cuda.get_device_capability(device) < _MIN_COMPUTE_CAPABILITY:
        minimum = ".".join(map(str, _MIN_COMPUTE_CAPABILITY))
        return f"the device's compute capability is below {minimum}"
    return why_no_triton() or _why_trial_fails(device)


@lru_cache
def _warn_once(reason: str) -> None:
    _log.warning("kernels do not run here, PyTorch is used: %s", reason)


@lru_cache
def _why_trial_fails(device: torch.device) -> str | None:
    """The outcome of a kernel's trial on `device`, once per process."""
    return importlib.import_module("penstock.kernels.blocks").try_out(device)


def why_impossible(device: torch.device | str) -> str | None:
    """Returns why kernels cannot run on `device` even if configured, or None: a CPU has the interpreter, for tests."""
    device = torch.device(device)
    if device.type != "cpu":
        return why_unavailable(device)
    if os.environ.get("TRITON_INTERPRET") != "1":
        return why_no_triton() or why_unavailable(device)
    return why_no_triton()


def require(device: torch.device) -> None:
    """Raises ValueError where kernels cannot run, even by the interpreter."""
    reason = why_impossible(device)
    if reason is not None:
        raise ValueError(f"this kernel cannot run: {reason}")
