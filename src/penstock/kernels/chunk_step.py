"""The encoder's attention and gated causal convolution of one chunk, over the state of its stream where it lies.

Attention has one program per stream and head. In PyTorch a step copies all keys and values, and a product has one query
per chunk of one frame: half of a step of 80 ms (docs/gpu.md). Here each key and value is read once. Convolution is one
launch for the gate, the window of inputs, the depthwise convolution and, where no norm follows, its activation.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers and the sizes it is compiled for

import torch

from penstock.kernels.blocks import sigmoid, tl, triton

_MIN_BLOCK = 16  # of a tensor-core product
_WARPS, _WARPS_OF_ONE_FRAME = 4, 8  # the fastest of 2, 4 and 8 on an H200

_NUMBERS = 1024
"""Results of a program, 8 for each of 128 threads; its inputs of earlier chunks are at most eight times as many."""


def attend_pages(
    qkv: torch.Tensor,
    by_distance: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    chunks_seen: torch.Tensor,
    valid_frames: torch.Tensor,
) -> torch.Tensor:
    """Returns the mixed values [B * T, D], and writes this chunk's keys and values to its page.

    qkv: [B * T, 3 * D], scaled queries, keys and values; by_distance: [H, B * T, L + 2T - 1], the scores of positions,
    the farthest first; pages: one layer's of `EncoderState.kv_pages`, [S, 2, H, P, T * dh]; slots, chunks_seen (before
    this chunk) and valid_frames (of this chunk): [B] int64. The reference is `Attention.step`. Never synchronizes.
    """
    _, _, heads, page_count, page = pages.shape
    width = qkv.shape[1] // 3
    frames = page * heads // width
    mixed = qkv.new_empty(len(qkv), width)
    warps = _WARPS if frames > 1 else _WARPS_OF_ONE_FRAME
    _attend_kernel[(len(slots), heads)](
        qkv, by_distance, pages, slots, chunks_seen, valid_frames, mixed, len(qkv),
        heads=heads, head_width=width // heads, head_block=_block(width // heads), frames=frames,
        page_count=page_count, distances=by_distance.shape[2], query_block=_block(frames),
        key_block=_block(page_count * frames), num_warps=warps,
    )  # fmt: skip
    return mixed


def _block(size: int) -> int:
    return max(_MIN_BLOCK, triton.next_power_of_2(size))


@triton.jit(do_not_specialize=["row_count"])
def _attend_kernel(
    qkv, by_distance, pages, slots, chunks_seen, valid_frames, mixed, row_count,
    heads: tl.constexpr, head_width: tl.constexpr, head_block: tl.constexpr, frames: tl.constexpr,
    page_count: tl.constexpr, distances: tl.constexpr, query_block: tl.constexpr, key_block: tl.constexpr,
):  # fmt: skip
    """Programs (stream, head)."""
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, seen, valid = tl.load(slots + stream), tl.load(chunks_seen + stream), tl.load(valid_frames + stream)
    width: tl.constexpr = heads * head_width
    column, query, key = tl.arange(0, head_block), tl.arange(0, query_block), tl.arange(0, key_block)
    column_mask, query_mask, key_mask = column < head_width, query < frames, key < page_count * frames
    # 1) the keys of all pages as they lie; those of this chunk come from the projection, and are written
    page, frame = key // frames, key % frames
    current = (seen % page_count).to(tl.int32)
    is_new = page == current
    half: tl.constexpr = page_count * frames * head_width
    page_at = (slot * (2 * heads) + head) * half + key[:, None] * head_width + column[None, :]
    new_at = (stream * frames + frame)[:, None] * (3 * width) + head * head_width + column[None, :]
    old_mask = (key_mask & (page != current))[:, None] & column_mask[None, :]
    new_mask = (key_mask & is_new)[:, None] & column_mask[None, :]
    new_keys = tl.load(qkv + new_at + width, mask=new_mask, other=0.0)
    new_values = tl.load(qkv + new_at + 2 * width, mask=new_mask, other=0.0)
    keys = tl.where(is_new[:, None], new_keys, tl.load(pages + page_at, mask=old_mask, other=0.0))
    values = tl.where(is_new[:, None], new_values, tl.load(pages + page_at + heads * half, mask=old_mask, other=0.0))
    tl.store(pages + page_at, new_keys, mask=new_mask)
    tl.store(pages + page_at + heads * half, new_values, mask=new_mask)
    # 2) scores of contents and of positions: query i and the key at place j, by age of its page, lie L + i - j apart
    row = stream * frames + query
    query_at = row[:, None] * (3 * width) + head * head_width + column[None, :]
    queries = tl.load(qkv + query_at, mask=query_mask[:, None] & column_mask[None, :], other=0.0)
    age = (current - page + page_count) % page_count
    place = (page_count - 1 - age) * frames + frame
    distance = place[None, :] + (frames - 1 - query)[:, None]
    position_at = (head * row_count.to(tl.int64) + row)[:, None] * distances + distance
    positions = tl.load(by_distance + position_at, mask=query_mask[:, None] & key_mask[None, :], other=0.0)
    # ieee: the default would cut float32 to TF32. Has no effect on the 16-bit types.
    scores = tl.dot(queries, tl.trans(keys), positions.to(tl.float32), input_precision="ieee")
    # 3) visible: chunks that the stream has had, and frames of this one that hold audio; finite, because a padding row
    # has no visible key
    last = tl.where(age == 0, valid, tl.where(age <= seen, frames, 0))
    scores = tl.where((key_mask & (frame < last))[None, :], scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    total = tl.dot(weights.to(values.dtype), values, input_precision="ieee") / tl.sum(weights, 1)[:, None]
    mixed_at = row[:, None] * width + head * head_width + column[None, :]
    tl.store(mixed + mixed_at, total.to(values.dtype), mask=query_mask[:, None] & column_mask[None, :])


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
