"""The least cost of each row while many programs work on it: as an integer, so that any order of threads agrees."""

from penstock.kernels.blocks import tl, triton

NO_COST = 0x7F800000
"""Infinity as `ordered` has it: a row without entries."""


@triton.jit
def ordered(cost):
    """float32 as int32 in the same order; its own inverse on the bits."""
    bits = cost.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def lower_least(least, cost, mask):
    """least: pointer to int32, of a row; cost: [N] float32."""
    tl.atomic_min(least, tl.min(ordered(tl.where(mask, cost, float("inf"))), 0))


@triton.jit
def finite_least(least):
    """The row's least cost, float32; 0 if it has no entry of a finite cost."""
    bits = tl.load(least)
    cost = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(cost < float("inf"), cost, 0.0)
