"""The prediction network's step: one launch per LSTM layer and one for the projection into the joint.

A layer's launch fuses the gather of the labels' gates, the product with the old hidden state, the gates' arithmetic and
the masked write. A layer needs the whole layer below it, and a launch is the simplest barrier over a device.
"""
# ruff: noqa: PLR0913 - a kernel's arguments are pointers, strides and the sizes it is compiled for

import torch

from penstock.kernels.blocks import add_product, pad_matrix, product_type, sigmoid, tanh, tl, triton, whole_blocks
from penstock.kernels.capability import require
from penstock.kernels.contracts import LstmLayerWeights, PredictorStates, PredictorWeights

BLOCK_ROWS = 16  # the minimum of a tensor-core product; the batch of a server is 1 to 64
# Narrow, so that H = 640 makes 40 programs per 16 rows: the step is bound by reading weights, not by sums.
BLOCK_COLUMNS = 16
BLOCK_INNER = 64


class FusedPredictor:
    """Advances the hypotheses that have a new label, by kernels. Holds its own copy of the weights, padded."""

    def __init__(self, weights: PredictorWeights):
        """Raises ValueError for inconsistent weights, and where kernels cannot run."""
        width = weights.projection_weight.shape[0]
        layers_fit = all(layer.hidden_weight.shape == (width, 4 * width) for layer in weights.layers)
        if not layers_fit or weights.label_gates.shape[1] != 4 * width:
            raise ValueError(f"the predictor's layers do not all have the projection's width {width}")
        if [layer.input_weight is None for layer in weights.layers] != [i == 0 for i in range(len(weights.layers))]:
            raise ValueError("the first predictor layer, and no other, has its input product in the label table")
        require(weights.projection_weight.device)
        self._label_gates = weights.label_gates.contiguous()
        self._layers = [_LayerWeights(layer) for layer in weights.layers]
        self._width, self._joint = weights.projection_weight.shape
        self._projection = pad_matrix(product_type(weights.projection_weight), BLOCK_INNER, BLOCK_COLUMNS)
        self._projection_bias = weights.projection_bias
        self._blocks = {"block_rows": BLOCK_ROWS, "block_columns": BLOCK_COLUMNS, "block_inner": BLOCK_INNER}

    def __call__(self, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorStates) -> PredictorStates:
        """Steps as `step_predictor` does. Never synchronizes with the host.

        Allocates the result, because the old state is read until the new one is complete.
        """
        new = PredictorStates(*(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in old))
        if len(labels):
            for index in range(len(self._layers)):
                self._launch_layer(index, labels, is_label, old, new)
            self._project(is_label, old, new)
        return new

    def _launch_layer(
        self, index: int, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorStates, new: PredictorStates
    ) -> None:
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

    def _project(self, is_label: torch.Tensor, old: PredictorStates, new: PredictorStates) -> None:
        hidden = new.hidden[:, -1]
        _projection_kernel[(triton.cdiv(len(is_label), BLOCK_ROWS), triton.cdiv(self._joint, BLOCK_COLUMNS))](
            hidden, is_label, self._projection, self._projection_bias, old.projected, new.projected,
            len(is_label), hidden.stride(0), old.projected.stride(0), new.projected.stride(0),
            width=self._width, joint=self._joint, pitch=self._projection.shape[1], **self._blocks,
        )  # fmt: skip


class _LayerWeights:
    """The weights of one layer, each gate padded to whole blocks: [H', 4 * H'']."""

    def __init__(self, weights: LstmLayerWeights):
        self.hidden_weight = _pad_gates(weights.hidden_weight)
        self.input_weight = None if weights.input_weight is None else _pad_gates(weights.input_weight)
        self.bias = weights.bias


def _pad_gates(weight: torch.Tensor) -> torch.Tensor:
    gates = product_type(weight).chunk(4, dim=1)
    return torch.cat([pad_matrix(gate, BLOCK_INNER, BLOCK_COLUMNS) for gate in gates], dim=1)


def step_predictor(
    weights: PredictorWeights, labels: torch.Tensor, is_label: torch.Tensor, old: PredictorStates
) -> PredictorStates:
    """The PyTorch reference: new tensors, the states after `labels` [N] int64 where is_label [N] bool, else `old`.

    The labels of other rows are not read. Sums are in float32 for all types, as in the kernels; values are rounded to
    the inputs' types at the same places.
    """
    labels = torch.where(is_label, labels, 0)
    selected = is_label.unsqueeze(1)
    gates = weights.label_gates.index_select(0, labels).float()  # [N, 4 * H]
    hidden: list[torch.Tensor] = []
    cell: list[torch.Tensor] = []
    for i, layer in enumerate(weights.layers):
        # 1) gates from the input and the old hidden state
        if layer.input_weight is not None and layer.bias is not None:
            gates = hidden[-1].float() @ layer.input_weight.float() + layer.bias.float()
        gates = gates + old.hidden[:, i].float() @ layer.hidden_weight.float()
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)  # each [N, H]
        # 2) new cell and hidden state, written where there is a label
        new_cell = forget_gate.sigmoid() * old.cell[:, i].float() + in_gate.sigmoid() * candidate.tanh()
        new_hidden = out_gate.sigmoid() * new_cell.tanh()
        hidden.append(torch.where(selected, new_hidden.to(old.hidden.dtype), old.hidden[:, i]))
        cell.append(torch.where(selected, new_cell.to(old.cell.dtype), old.cell[:, i]))
    # 3) projection into the joint
    projected = hidden[-1].float() @ weights.projection_weight.float() + weights.projection_bias.float()
    projected = torch.where(selected, projected.to(old.projected.dtype), old.projected)
    return PredictorStates(projected, torch.stack(hidden, 1), torch.stack(cell, 1))


@triton.jit
def _layer_gate(
    gate, left_rows, row_mask, columns, weight, hidden_rows, input_weight, bias, width: tl.constexpr,
    pitch: tl.constexpr, padded: tl.constexpr, block_inner: tl.constexpr, has_input: tl.constexpr,
):  # fmt: skip
    """Sums [rows, columns] of one gate; left_rows: pointers into the label table, above the first layer to inputs."""
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
    """Programs (block of rows, block of columns): one LSTM layer; rows without a label keep their state."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    row_mask = row < row_count
    row = row.to(tl.int64)
    selected = tl.load(is_label + row, mask=row_mask, other=0) != 0
    hidden_rows = hidden + row * hidden_stride
    if has_input:
        left_rows = inputs + row * input_stride
    else:
        # A row without a label reads the first label's gates.
        left_rows = label_gates + tl.load(labels + row, mask=selected, other=0) * (4 * width)
    # 1) the four gates
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
    # 2) new cell and hidden state, written where there is a label
    mask = row_mask[:, None] & (columns < width)[None, :]
    old_hidden = tl.load(hidden_rows[:, None] + columns[None, :], mask=mask, other=0.0)
    old_cell = tl.load(cell + row[:, None] * cell_stride + columns[None, :], mask=mask, other=0.0)
    new_cell_values = sigmoid(forget_gate) * old_cell.to(tl.float32) + sigmoid(in_gate) * tanh(candidate)
    new_hidden_values = sigmoid(out_gate) * tanh(new_cell_values)
    select = selected[:, None]
    at = row[:, None] * new_stride + columns[None, :]
    tl.store(new_hidden + at, tl.where(select, new_hidden_values.to(old_hidden.dtype), old_hidden), mask=mask)
    tl.store(new_cell + at, tl.where(select, new_cell_values.to(old_cell.dtype), old_cell), mask=mask)


@triton.jit(do_not_specialize=["row_count"])
def _projection_kernel(
    hidden, is_label, weight, bias, old_projected, new_projected, row_count, hidden_stride, old_stride, new_stride,
    width: tl.constexpr, joint: tl.constexpr, pitch: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr,
):  # fmt: skip
    """Programs (block of rows, block of columns): projects the last layer into the joint."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    row_mask, column_mask = row < row_count, columns < joint
    row = row.to(tl.int64)
    selected = tl.load(is_label + row, mask=row_mask, other=0) != 0
    total = tl.zeros([block_rows, block_columns], tl.float32)
    total += tl.load(bias + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    total = add_product(total, hidden + row * hidden_stride, row_mask, weight, columns, pitch, width, block_inner)
    mask = row_mask[:, None] & column_mask[None, :]
    old = tl.load(old_projected + row[:, None] * old_stride + columns[None, :], mask=mask, other=0.0)
    new = tl.where(selected[:, None], total.to(old.dtype), old)
    tl.store(new_projected + row[:, None] * new_stride + columns[None, :], new, mask=mask)
