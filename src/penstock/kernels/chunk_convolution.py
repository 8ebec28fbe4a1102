"""The encoder's gated causal convolution of one chunk, its inputs of earlier chunks read and replaced in their slot.

One launch for the gate, the window of inputs, the depthwise convolution and, where no norm follows, its activation.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers and the sizes it is compiled for

import torch

from penstock.kernels.blocks import sigmoid, tl, triton

_NUMBERS = 1024
"""Of a program's result, 8 for each of 128 threads; of its inputs of earlier chunks at most eight times as many."""


def convolve_chunk(
    gates: torch.Tensor,
    tails: torch.Tensor,
    slots: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    has_activation: bool,
) -> torch.Tensor:
    """Returns the depthwise convolution [B * T, D] of glu(gates), after silu with `has_activation`; updates `tails`.

    gates: [B * T, 2 * D], values and gates; tails: one layer's of `EncoderState.conv_tails`, [S, k - 1, D], the last
    inputs of each stream; slots: [B] int64; weight: [k, D]; bias: [D] or None. The reference is `Convolution.step`.
    Never synchronizes.
    """
    taps, width = weight.shape
    frames = len(gates) // len(slots)
    gated, mixed = gates.new_empty(2, len(gates), width).unbind()
    frame_block, tail_block = triton.next_power_of_2(frames), triton.next_power_of_2(taps - 1)
    column_block = min(_NUMBERS // frame_block, 8 * _NUMBERS // tail_block, triton.next_power_of_2(width))
    column_block = max(16, column_block)
    _convolve_kernel[(len(slots), triton.cdiv(width, column_block))](
        gates, tails, slots, weight, weight if bias is None else bias, gated, mixed,
        width=width, frames=frames, taps=taps, frame_block=frame_block,
        tail_block=tail_block, column_block=column_block, has_bias=bias is not None,
        has_activation=has_activation,
    )  # fmt: skip
    return mixed


@triton.jit
def _window_rows(place, in_range, column, column_mask, tail_at, gated_at, width: tl.constexpr, tail: tl.constexpr):
    """Rows `place` of a stream's window: its tail, then this chunk's gated inputs."""
    is_old = place < tail
    old_mask = (in_range & is_old)[:, None] & column_mask[None, :]
    new_mask = (in_range & (place >= tail))[:, None] & column_mask[None, :]
    old = tl.load(tail_at + place[:, None] * width + column[None, :], mask=old_mask, other=0.0)
    new = tl.load(gated_at + (place - tail)[:, None] * width + column[None, :], mask=new_mask, other=0.0)
    return tl.where(is_old[:, None], old, new)


@triton.jit
def _convolve_kernel(
    gates, tails, slots, weight, bias, gated, mixed,
    width: tl.constexpr, frames: tl.constexpr, taps: tl.constexpr, frame_block: tl.constexpr, tail_block: tl.constexpr,
    column_block: tl.constexpr, has_bias: tl.constexpr, has_activation: tl.constexpr,
):  # fmt: skip
    """Programs (stream, block of columns)."""
    stream = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * column_block + tl.arange(0, column_block)
    column_mask = column < width
    tail: tl.constexpr = taps - 1
    tail_at, gated_at = tails + tl.load(slots + stream) * (tail * width), gated + stream * (frames * width)
    # 1) gated inputs, rounded as memory holds them, for other threads of this program
    frame = tl.arange(0, frame_block)
    frame_mask = frame < frames
    mask = frame_mask[:, None] & column_mask[None, :]
    input_at = (stream * frames + frame)[:, None] * (2 * width) + column[None, :]
    value = tl.load(gates + input_at, mask=mask, other=0.0)
    gate = tl.load(gates + input_at + width, mask=mask, other=0.0).to(tl.float32)
    at = frame[:, None] * width + column[None, :]
    tl.store(gated_at + at, (value.to(tl.float32) * sigmoid(gate)).to(value.dtype), mask=mask)
    tl.debug_barrier()
    # 2) sum over taps of the window's rows
    total = tl.zeros([frame_block, column_block], tl.float32)
    if has_bias:
        total += tl.load(bias + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(taps):
        rows = _window_rows(frame + tap, frame_mask, column, column_mask, tail_at, gated_at, width, tail)
        factor = tl.load(weight + tap * width + column, mask=column_mask, other=0.0).to(tl.float32)
        total += rows.to(tl.float32) * factor[None, :]
    if has_activation:
        total = total * sigmoid(total)
    tl.store(mixed + stream * (frames * width) + at, total.to(value.dtype), mask=mask)
    # 3) the window's last rows are the tail of the next chunk; it is read whole before it is written
    kept = tl.arange(0, tail_block)
    kept_mask = kept < tail
    rows = _window_rows(kept + frames, kept_mask, column, column_mask, tail_at, gated_at, width, tail)
    tl.debug_barrier()
    tl.store(tail_at + kept[:, None] * width + column[None, :], rows, mask=kept_mask[:, None] & column_mask[None, :])
