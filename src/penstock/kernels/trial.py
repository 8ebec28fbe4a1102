"""A small kernel that shows whether kernels can be compiled and run on a device."""

import torch

from penstock.kernels.blocks import tl, triton

_VALUES = 8


@triton.jit
def _double_kernel(values, count: tl.constexpr):
    """values: pointer to float32 [count], doubled in place."""
    at = values + tl.arange(0, count)
    tl.store(at, 2.0 * tl.load(at))


def try_out(device: torch.device) -> str | None:
    """Compiles and runs the kernel and waits for it; returns what failed, or None.

    The first kernel of a process also compiles Triton's launcher, which takes a C compiler.
    """
    values = torch.arange(_VALUES, dtype=torch.float32, device=device)
    try:
        _double_kernel[(1,)](values, count=_VALUES)
        found = values.tolist()
    except Exception as error:  # noqa: BLE001 - of the compiler, the launcher or the device
        return f"a trial failed: {type(error).__name__}: {error}"
    expected = [2.0 * value for value in range(_VALUES)]
    return None if found == expected else f"a trial returned {found}, expected {expected}"
