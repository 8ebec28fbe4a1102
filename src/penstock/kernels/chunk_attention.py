"""The encoder's attention of one chunk, over the pages of its stream where they lie: one program per stream and head.

In PyTorch a step copies all keys and values, and a product has one query per chunk of one frame: half of a step of 80
ms (docs/gpu.md). Here each key and value is read once.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers and the sizes it is compiled for

import torch

from penstock.kernels.blocks import tl, triton

_MIN_BLOCK = 16  # of a tensor-core product
_WARPS, _WARPS_OF_ONE_FRAME = 4, 8  # the fastest of 2, 4 and 8 on an H200


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
