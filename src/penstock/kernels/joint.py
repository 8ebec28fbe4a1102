"""Joint, log-sum-exp and arg-max in one pass over the vocabulary: logits stay in registers and are never written.

Two launches. The first gives each program a block of pairs of frame and prediction and a share of the labels; one more
program takes blank and the durations. The second merges the shares. One launch would leave most of a device idle: a
search has some hundred pairs, so the vocabulary has to be split. In between, six numbers per pair and share are
stored. The log-sum-exp over blocks is that of Milakov and Gimelshein (arXiv 1805.02867).
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers, strides and the sizes it is compiled for

import torch

from penstock.kernels.blocks import (
    activate,
    max_per_row,
    pad_matrix,
    pad_vector,
    product_type,
    tl,
    triton,
    whole_blocks,
)
from penstock.kernels.capability import TYPES, require
from penstock.kernels.contracts import JointChoice, JointWeights

# The minimum of a tensor-core product, for few pairs; for many, fewer passes over the weights are worth more.
FEW_PAIRS, MANY_PAIRS = 16, 64
# 64 x 64 sums are 32 registers of each of 128 threads; a weight tile is 8 KiB in 16 bits, three of them in flight.
BLOCK_LABELS, BLOCK_JOINT = 64, 64
# About two programs per multiprocessor of a large device; more shares only make the second launch longer.
TARGET_PROGRAMS = 256
_MERGE_PAIRS = 128
_FLOATS, _INTEGERS = 4, 2  # numbers per share: see _choose_share
_ACTIVATIONS = ("relu", "tanh", "sigmoid")


class FusedJoint:
    """The joint and its arg-max by kernels. Holds its own copy of the weights, padded."""

    def __init__(self, weights: JointWeights):
        """Raises ValueError for inconsistent weights, and where kernels cannot run."""
        labels, weight, bias = weights.vocabulary_size, product_type(weights.weight), weights.bias
        columns = weight.shape[1]
        if weights.activation not in _ACTIVATIONS:
            raise ValueError(f"unknown joint activation {weights.activation!r}: one of {', '.join(_ACTIVATIONS)}")
        if len(bias) != columns or not 0 < labels < columns:
            raise ValueError(f"a joint of {columns} outputs and {len(bias)} biases has no {labels} labels")
        if weight.dtype not in TYPES:
            raise ValueError(f"the joint's weights are {weight.dtype}, not float32, float16 or bfloat16")
        require(weight.device)
        self._weights = weights
        # -inf after the last label and the last duration: padding adds nothing to a sum and never is the maximum.
        self._label_weight = pad_matrix(weight[:, :labels], BLOCK_JOINT, BLOCK_LABELS)
        self._label_bias = pad_vector(bias[:labels], BLOCK_LABELS, float("-inf"))
        self._block_tail = max(16, triton.next_power_of_2(weights.durations + 1))
        self._tail_weight = pad_matrix(weight[:, labels:], BLOCK_JOINT, self._block_tail)
        self._tail_bias = pad_vector(bias[labels:], self._block_tail, float("-inf"))

    def __call__(
        self, frames: torch.Tensor, predictions: torch.Tensor, extra: torch.Tensor | None = None
    ) -> JointChoice:
        """The joint of every pair and its maxima. Allocates the result; never synchronizes with the host.

        frames: [N, W, J] or [N, J], projected; predictions: [N, J], projected, one for all W; extra: [N, V] float32,
        added to the ranking of labels only. Sums are in float32 for all types.

        Tensors may be strided, except in their last axis. No score may be NaN or +inf; labels may be -inf. Rows with
        NaN get undefined scores, but valid indices.
        """
        shape, window = frames.shape[:-1], 1 if frames.dim() == 2 else frames.shape[1]
        pairs, device, weights = shape.numel(), frames.device, self._weights
        floats = torch.empty(5, pairs, device=device)
        integers = torch.empty(3, pairs, dtype=torch.int64, device=device)
        if pairs:
            self._launch(frames, predictions, extra, floats, integers, window)
        blank, label_score, duration_score, fused_score, fused_total = floats.view(5, *shape)
        label, duration, fused_label = integers.view(3, *shape)
        choice = JointChoice(blank, label, label_score, duration, duration_score, fused_label, fused_score, fused_total)
        if not weights.durations:
            choice = choice._replace(duration=None, duration_score=None)
        if extra is None:
            choice = choice._replace(fused_label=None, fused_label_score=None, fused_total=None)
        return choice

    def _launch(
        self,
        frames: torch.Tensor,
        predictions: torch.Tensor,
        extra: torch.Tensor | None,
        floats: torch.Tensor,
        integers: torch.Tensor,
        window: int,
    ) -> None:
        pairs, labels = floats.shape[1], self._weights.vocabulary_size
        block_pairs = pairs_per_block(pairs, self._label_weight.dtype)
        # 1) share the vocabulary out, so that there are about TARGET_PROGRAMS programs
        pair_blocks, label_blocks = triton.cdiv(pairs, block_pairs), whole_blocks(labels, BLOCK_LABELS) // BLOCK_LABELS
        share_blocks = triton.cdiv(label_blocks, triton.cdiv(TARGET_PROGRAMS, pair_blocks))
        shares = triton.cdiv(label_blocks, share_blocks)  # none of them empty
        share_floats = torch.empty(_FLOATS, shares, pairs, device=floats.device)
        share_integers = torch.empty(_INTEGERS, shares, pairs, dtype=torch.int32, device=floats.device)
        # 2) reduce each share, blank and durations
        _share_kernel[(pair_blocks, shares + 1)](
            frames, predictions, self._label_weight, self._label_bias, self._tail_weight, self._tail_bias,
            floats if extra is None else extra, share_floats, share_integers, floats, integers,
            pairs, window, shares, share_blocks, frames.stride(0), frames.stride(1) if window > 1 else 0,
            predictions.stride(0), 0 if extra is None else extra.stride(0),
            labels=labels, durations=self._weights.durations, joint=frames.shape[-1], block_pairs=block_pairs,
            block_labels=BLOCK_LABELS, block_tail=self._block_tail, block_joint=BLOCK_JOINT,
            activation=self._weights.activation, has_extra=extra is not None,
        )  # fmt: skip
        # 3) merge the shares
        _merge_kernel[(triton.cdiv(pairs, _MERGE_PAIRS),)](
            share_floats, share_integers, floats, integers, pairs, shares,
            labels=labels, block_pairs=_MERGE_PAIRS, has_extra=extra is not None,
        )  # fmt: skip


def pairs_per_block(pairs: int, dtype: torch.dtype) -> int:
    """Pairs of a program; MANY_PAIRS in float32 would need 112 KiB of shared memory, and some devices have 99."""
    return FEW_PAIRS if pairs <= 4 * FEW_PAIRS or dtype == torch.float32 else MANY_PAIRS


@triton.jit
def _block_logits(
    frame_rows, prediction_rows, pair_mask, weight, bias, columns, pitch: tl.constexpr, joint: tl.constexpr,
    block_joint: tl.constexpr, activation: tl.constexpr,
):  # fmt: skip
    """Logits [pairs, columns] in float32; frame_rows, prediction_rows: pointers [pairs]."""
    total = tl.zeros([frame_rows.shape[0], columns.shape[0]], tl.float32)
    for start in range(0, joint, block_joint):
        inner = start + tl.arange(0, block_joint)
        mask = pair_mask[:, None] & (inner < joint)[None, :]
        frame = tl.load(frame_rows[:, None] + inner[None, :], mask=mask, other=0.0).to(tl.float32)
        prediction = tl.load(prediction_rows[:, None] + inner[None, :], mask=mask, other=0.0).to(tl.float32)
        # sigmoid(0) of the padding meets zeros in the weight.
        hidden = activate(frame + prediction, activation)
        tile = tl.load(weight + inner[:, None] * pitch + columns[None, :])
        total = tl.dot(hidden.to(tile.dtype), tile, total, input_precision="ieee")
    return total + tl.load(bias + columns)[None, :]


@triton.jit
def _choose_share(
    frame_rows, prediction_rows, pair_mask, weight, bias, extra_rows, first_block, end_block,
    labels: tl.constexpr, pitch: tl.constexpr, joint: tl.constexpr, block_labels: tl.constexpr,
    block_joint: tl.constexpr, activation: tl.constexpr, has_extra: tl.constexpr,
):  # fmt: skip
    """Over blocks of labels: best logit, sum of exp(logit - best), best total and its logit; the two labels."""
    nothing = tl.full([frame_rows.shape[0]], float("-inf"), tl.float32)
    best, mass, best_total, total_logit = nothing, tl.zeros_like(nothing), nothing, nothing
    label = tl.zeros([frame_rows.shape[0]], tl.int32)
    total_label = tl.zeros([frame_rows.shape[0]], tl.int32)
    for block in range(first_block, end_block):
        columns = block * block_labels + tl.arange(0, block_labels)
        logits = _block_logits(
            frame_rows, prediction_rows, pair_mask, weight, bias, columns, pitch, joint, block_joint, activation
        )
        # 1) best label; only a greater one replaces it, so the first of equals stays. The first block wins with -inf.
        block_best, place = max_per_row(logits)
        is_first = block == first_block
        label = tl.where((block_best > best) | is_first, block * block_labels + place, label)
        # 2) running log-sum-exp
        new_best = tl.maximum(best, block_best)
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)  # -inf minus -inf would be NaN
        mass = mass * tl.exp(best - shift) + tl.sum(tl.exp(logits - shift[:, None]), 1)
        best = new_best
        # 3) best label with extra scores, and its logit
        if has_extra:
            mask = pair_mask[:, None] & (columns < labels)[None, :]
            totals = logits + tl.load(extra_rows[:, None] + columns[None, :], mask=mask, other=0.0)
            block_total, place = max_per_row(totals)
            is_better = (block_total > best_total) | is_first
            is_chosen = tl.arange(0, block_labels)[None, :] == place[:, None]
            total_logit = tl.where(is_better, tl.sum(tl.where(is_chosen, logits, 0.0), 1), total_logit)
            total_label = tl.where(is_better, block * block_labels + place, total_label)
            best_total = tl.where(is_better, block_total, best_total)
    return best, mass, best_total, total_logit, label, total_label


@triton.jit(do_not_specialize=["pairs", "window", "shares", "share_blocks"])
def _share_kernel(
    frame, prediction, label_weight, label_bias, tail_weight, tail_bias, extra, share_floats, share_integers,
    floats, integers, pairs, window, shares, share_blocks,
    frame_stride, frame_window_stride, prediction_stride, extra_stride,
    labels: tl.constexpr, durations: tl.constexpr, joint: tl.constexpr, block_pairs: tl.constexpr,
    block_labels: tl.constexpr, block_tail: tl.constexpr, block_joint: tl.constexpr, activation: tl.constexpr,
    has_extra: tl.constexpr,
):  # fmt: skip
    """Programs (block of pairs, share): reduces one share of the labels; the last share is blank and durations."""
    label_blocks: tl.constexpr = (labels + block_labels - 1) // block_labels
    pair = tl.program_id(0) * block_pairs + tl.arange(0, block_pairs)
    share = tl.program_id(1)
    pair_mask = pair < pairs
    row = (pair // window).to(tl.int64)
    frame_rows = frame + row * frame_stride + (pair % window) * frame_window_stride
    prediction_rows = prediction + row * prediction_stride
    if share < shares:
        best, mass, best_total, total_logit, label, total_label = _choose_share(
            frame_rows, prediction_rows, pair_mask, label_weight, label_bias, extra + row * extra_stride,
            share * share_blocks, tl.minimum((share + 1) * share_blocks, label_blocks),
            labels, label_blocks * block_labels, joint, block_labels, block_joint, activation, has_extra,
        )  # fmt: skip
        at = share_floats + share * pairs + pair
        field = shares * pairs
        tl.store(at, best, mask=pair_mask)
        tl.store(at + field, mass, mask=pair_mask)
        tl.store(share_integers + share * pairs + pair, label, mask=pair_mask)
        if has_extra:
            tl.store(at + 2 * field, best_total, mask=pair_mask)
            tl.store(at + 3 * field, total_logit, mask=pair_mask)
            tl.store(share_integers + field + share * pairs + pair, total_label, mask=pair_mask)
    else:
        columns = tl.arange(0, block_tail)
        logits = _block_logits(
            frame_rows, prediction_rows, pair_mask, tail_weight, tail_bias, columns, block_tail, joint, block_joint,
            activation,
        )  # fmt: skip
        # Blank is the first column. The second launch normalizes its logit, when the sum over all labels is known.
        tl.store(floats + pair, tl.sum(tl.where(columns[None, :] == 0, logits, 0.0), 1), mask=pair_mask)
        if durations > 0:
            duration_logits = tl.where(columns[None, :] == 0, float("-inf"), logits)
            best, place = tl.max(duration_logits, 1, return_indices=True)
            mass = tl.sum(tl.exp(duration_logits - best[:, None]), 1)
            tl.store(floats + 2 * pairs + pair, -tl.log(mass), mask=pair_mask)
            # A row of NaN has no maximum, but must get a valid index, here and for labels.
            duration = tl.minimum(tl.maximum(place - 1, 0), durations - 1)
            tl.store(integers + pairs + pair, duration.to(tl.int64), mask=pair_mask)


@triton.jit(do_not_specialize=["pairs", "shares"])
def _merge_kernel(
    share_floats, share_integers, floats, integers, pairs, shares,
    labels: tl.constexpr, block_pairs: tl.constexpr, has_extra: tl.constexpr,
):  # fmt: skip
    """Programs (block of pairs): merges the shares of each pair and normalizes its scores."""
    # 1) best label and log-sum-exp over blank and all shares
    pair = tl.program_id(0) * block_pairs + tl.arange(0, block_pairs)
    mask = pair < pairs
    field = shares * pairs
    blank = tl.load(floats + pair, mask=mask, other=0.0)
    best = tl.load(share_floats + pair, mask=mask, other=0.0)
    label = tl.load(share_integers + pair, mask=mask, other=0)
    top = tl.maximum(best, blank)
    shift = tl.where(top == float("-inf"), 0.0, top)
    mass = tl.load(share_floats + field + pair, mask=mask, other=0.0) * tl.exp(best - shift) + tl.exp(blank - shift)
    for share in range(1, shares):
        at = share_floats + share * pairs + pair
        other = tl.load(at, mask=mask, other=0.0)
        other_mass = tl.load(at + field, mask=mask, other=0.0)
        other_label = tl.load(share_integers + share * pairs + pair, mask=mask, other=0)
        new_top = tl.maximum(top, other)
        new_shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        mass = mass * tl.exp(top - new_shift) + other_mass * tl.exp(other - new_shift)
        label = tl.where(other > best, other_label, label)
        best = tl.maximum(best, other)
        top = new_top
    total = top + tl.log(mass)
    tl.store(floats + pair, blank - total, mask=mask)
    tl.store(floats + pairs + pair, best - total, mask=mask)
    tl.store(integers + pair, tl.minimum(label, labels - 1).to(tl.int64), mask=mask)
    # 2) best label with extra scores
    if has_extra:
        best_total = tl.load(share_floats + 2 * field + pair, mask=mask, other=0.0)
        logit = tl.load(share_floats + 3 * field + pair, mask=mask, other=0.0)
        label = tl.load(share_integers + field + pair, mask=mask, other=0)
        for share in range(1, shares):
            at = share_floats + share * pairs + pair
            other = tl.load(at + 2 * field, mask=mask, other=0.0)
            is_better = other > best_total
            logit = tl.where(is_better, tl.load(at + 3 * field, mask=mask, other=0.0), logit)
            other_label = tl.load(share_integers + field + share * pairs + pair, mask=mask, other=0)
            label = tl.where(is_better, other_label, label)
            best_total = tl.where(is_better, other, best_total)
        tl.store(floats + 3 * pairs + pair, logit - total, mask=mask)
        tl.store(floats + 4 * pairs + pair, best_total - total, mask=mask)
        tl.store(integers + 2 * pairs + pair, tl.minimum(label, labels - 1).to(tl.int64), mask=mask)
