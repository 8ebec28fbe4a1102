"""The prediction network's step: one launch for each LSTM layer and one for the projection into the joint.

A layer's launch fuses the gather of the labels' gates, the product with the old hidden state, the gates' arithmetic and
the write of the rows that have a label. A layer needs all of the layer below, and a launch is the plainest barrier over
a whole device; so there is one for each. Knows no search.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers, strides and the sizes it is compiled for

import torch
import triton
import triton.language as tl

from penstock.kernels.arithmetic import add_product, sigmoid, tanh
from penstock.kernels.contracts import LstmLayerWeights, PredictorRows, PredictorWeights
from penstock.kernels.padding import pad_matrix, product_type, whole_blocks

BLOCK_ROWS = 16  # the least that a tensor-core product takes; a server's batch is 1 to 64
# Narrow, so that H = 640 makes 40 programs for each 16 rows: the step waits for the weights to be read, not for sums.
BLOCK_COLUMNS = 16
BLOCK_INNER = 64


@triton.jit
def _layer_gate(
    gate, left_rows, row_mask, columns, weight, hidden_rows, input_weight, bias, width: tl.constexpr,
    pitch: tl.constexpr, padded: tl.constexpr, block_inner: tl.constexpr, has_input: tl.constexpr,
):  # fmt: skip
    """One gate's sums [rows, columns]; `left_rows` are label table rows, or for a layer above the first its input."""
    place = gate * pitch + columns
    column_mask = columns < width
    if has_input:
        total = tl.zeros([left_rows.shape[0], columns.shape[0]], tl.float32)
        total += tl.load(bias + gate * width + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
        total = add_product(total, left_rows, row_mask, input_weight, place, padded, width, block_inner)
    else:
        mask = row_mask[:, None] & column_mask[None, :]
        total = tl.load(left_rows[:, None] + (gate * width + columns)[None, :], mask=mask, other=0.0).to(tl.float32)
    return add_product(total, hidden_rows, row_mask, weight, place, padded, width, block_inner)


@triton.jit(do_not_specialize=["row_count"])
def _layer_kernel(
    label_gates, labels, is_label, inputs, hidden, cell, input_weight, hidden_weight, bias, new_hidden, new_cell,
    row_count, input_stride, hidden_stride, cell_stride, new_stride,
    width: tl.constexpr, pitch: tl.constexpr, has_input: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    row_mask = row < row_count
    row = row.to(tl.int64)
    selected = tl.load(is_label + row, mask=row_mask, other=0) != 0
    hidden_rows = hidden + row * hidden_stride
    if has_input:
        left_rows = inputs + row * input_stride
    else:
        # A row without a label may name any: it reads that of the first.
        left_rows = label_gates + tl.load(labels + row, mask=selected, other=0) * (4 * width)
    padded: tl.constexpr = 4 * pitch
    in_gate = _layer_gate(
        0, left_rows, row_mask, columns, hidden_weight, hidden_rows, input_weight, bias, width, pitch, padded,
        block_inner, has_input,
    )  # fmt: skip
    forget_gate = _layer_gate(
        1, left_rows, row_mask, columns, hidden_weight, hidden_rows, input_weight, bias, width, pitch, padded,
        block_inner, has_input,
    )  # fmt: skip
    candidate = _layer_gate(
        2, left_rows, row_mask, columns, hidden_weight, hidden_rows, input_weight, bias, width, pitch, padded,
        block_inner, has_input,
    )  # fmt: skip
    out_gate = _layer_gate(
        3, left_rows, row_mask, columns, hidden_weight, hidden_rows, input_weight, bias, width, pitch, padded,
        block_inner, has_input,
    )  # fmt: skip
    mask = row_mask[:, None] & (columns < width)[None, :]
    old_hidden = tl.load(hidden_rows[:, None] + columns[None, :], mask=mask, other=0.0)
    old_cell = tl.load(cell + row[:, None] * cell_stride + columns[None, :], mask=mask, other=0.0)
    made_cell = sigmoid(forget_gate) * old_cell.to(tl.float32) + sigmoid(in_gate) * tanh(candidate)
    made_hidden = sigmoid(out_gate) * tanh(made_cell)
    keep = selected[:, None]
    at = row[:, None] * new_stride + columns[None, :]
    tl.store(new_hidden + at, tl.where(keep, made_hidden.to(old_hidden.dtype), old_hidden), mask=mask)
    tl.store(new_cell + at, tl.where(keep, made_cell.to(old_cell.dtype), old_cell), mask=mask)


@triton.jit(do_not_specialize=["row_count"])
def _projection_kernel(
    hidden, is_label, weight, bias, old_rows, new_rows, row_count, hidden_stride, old_stride, new_stride,
    width: tl.constexpr, joint: tl.constexpr, pitch: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    row_mask, column_mask = row < row_count, columns < joint
    row = row.to(tl.int64)
    selected = tl.load(is_label + row, mask=row_mask, other=0) != 0
    total = tl.zeros([block_rows, block_columns], tl.float32)
    total += tl.load(bias + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    total = add_product(total, hidden + row * hidden_stride, row_mask, weight, columns, pitch, width, block_inner)
    mask = row_mask[:, None] & column_mask[None, :]
    old = tl.load(old_rows + row[:, None] * old_stride + columns[None, :], mask=mask, other=0.0)
    new = tl.where(selected[:, None], total.to(old.dtype), old)
    tl.store(new_rows + row[:, None] * new_stride + columns[None, :], new, mask=mask)


class _Layer:
    """One layer's weights, each gate padded to whole blocks: [H', 4 * H'']."""

    def __init__(self, weights: LstmLayerWeights):
        self.hidden_weight = _pad_gates(weights.hidden_weight)
        self.input_weight = None if weights.input_weight is None else _pad_gates(weights.input_weight)
        self.bias = weights.bias


def _pad_gates(weight: torch.Tensor) -> torch.Tensor:
    gates = product_type(weight).chunk(4, dim=1)
    return torch.cat([pad_matrix(gate, BLOCK_INNER, BLOCK_COLUMNS) for gate in gates], dim=1)


class PredictorKernel:
    """`torch_twins.step_predictor` in one launch a layer and one more. Holds its own copy of the weights, padded."""

    def __init__(self, weights: PredictorWeights):
        self._label_gates = weights.label_gates.contiguous()
        self._layers = [_Layer(layer) for layer in weights.layers]
        self._width, self._joint = weights.projection_weight.shape
        self._projection = pad_matrix(product_type(weights.projection_weight), BLOCK_INNER, BLOCK_COLUMNS)
        self._projection_bias = weights.projection_bias
        self._blocks = {"block_rows": BLOCK_ROWS, "block_columns": BLOCK_COLUMNS, "block_inner": BLOCK_INNER}

    def __call__(self, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorRows) -> PredictorRows:
        """As the twin. Allocates the result: the old state is read to the end while the new one is written."""
        new = PredictorRows(*(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in old))
        if len(labels):
            for index in range(len(self._layers)):
                self._launch_layer(index, labels, is_label, old, new)
            self._project(is_label, old, new)
        return new

    def _launch_layer(self, index: int, labels, is_label, old: PredictorRows, new: PredictorRows) -> None:
        layer, has_input = self._layers[index], index > 0
        hidden, cell = old.hidden[:, index], old.cell[:, index]
        new_hidden, new_cell = new.hidden[:, index], new.cell[:, index]
        inputs = new.hidden[:, index - 1] if has_input else hidden
        _layer_kernel[(triton.cdiv(len(labels), BLOCK_ROWS), triton.cdiv(self._width, BLOCK_COLUMNS))](
            self._label_gates, labels, is_label, inputs, hidden, cell,
            layer.input_weight if has_input else layer.hidden_weight, layer.hidden_weight,
            layer.bias if has_input else layer.hidden_weight, new_hidden, new_cell,
            len(labels), inputs.stride(0), hidden.stride(0), cell.stride(0), new_hidden.stride(0),
            width=self._width, pitch=whole_blocks(self._width, BLOCK_COLUMNS), has_input=has_input, **self._blocks,
        )  # fmt: skip

    def _project(self, is_label, old: PredictorRows, new: PredictorRows) -> None:
        hidden = new.hidden[:, -1]
        _projection_kernel[(triton.cdiv(len(is_label), BLOCK_ROWS), triton.cdiv(self._joint, BLOCK_COLUMNS))](
            hidden, is_label, self._projection, self._projection_bias, old.rows, new.rows,
            len(is_label), hidden.stride(0), old.rows.stride(0), new.rows.stride(0),
            width=self._width, joint=self._joint, pitch=self._projection.shape[1], **self._blocks,
        )  # fmt: skip
