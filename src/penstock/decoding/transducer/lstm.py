"""The LSTM of a prediction network (predictor), one label at a time for batches of hypotheses."""

import torch

from penstock.kernels.contracts import LstmLayerWeights
from penstock.linear import Linear

Tensors = dict[str, torch.Tensor]
LstmState = tuple[torch.Tensor, ...]
"""Hidden and cell values, each [N, layers, H]."""


class Lstm:
    """Embedding and LSTM layers of a predictor."""

    def __init__(self, tensors: Tensors, layers: int):
        """tensors: a bundle's, `predictor.embedding.weight` and `predictor.lstm.*`."""
        self._hidden_products = [
            Linear(_weight(tensors, layer, "hidden"), has_single_rows=True) for layer in range(layers)
        ]
        self._input_products = [_input_product(tensors, layer) for layer in range(1, layers)]
        # The first layer's input product depends on the label alone: a table [V + 1, 4 * H] instead of a product.
        self.label_gates = _input_product(tensors, 0)(tensors["predictor.embedding.weight"])

    def step(self, labels: torch.Tensor, state: LstmState) -> tuple[torch.Tensor, LstmState]:
        """Runs one step: returns the output [N, H] after `labels` [N] and the new state."""
        hidden, cell = state  # [N, layers, H]
        new_hidden: list[torch.Tensor] = []
        new_cell: list[torch.Tensor] = []
        gates = self.label_gates.index_select(0, labels)  # [N, 4 * H]
        for i, hidden_product in enumerate(self._hidden_products):
            if i > 0:
                gates = self._input_products[i - 1](new_hidden[-1])
            h, c = _next_state(hidden_product.add_to(gates, hidden[:, i]), cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        return new_hidden[-1], (_stacked(new_hidden), _stacked(new_cell))


def _stacked(layers: list[torch.Tensor]) -> torch.Tensor:
    """[N, layers, H]; of a single layer a view."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)


def kernel_weights(tensors: Tensors, layers: int) -> tuple[LstmLayerWeights, ...]:
    """The layers' weights for the kernels, of the tensors of an `Lstm`."""
    hidden = [_weight(tensors, layer, "hidden").t().contiguous() for layer in range(layers)]
    inputs = [_weight(tensors, layer, "input").t().contiguous() for layer in range(1, layers)]
    biases = [_bias(tensors, layer) for layer in range(1, layers)]
    return tuple(map(LstmLayerWeights, [None, *inputs], hidden, [None, *biases]))


def _next_state(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the new hidden and cell [N, H]; gates: [N, 4 * H] in the order input, forget, cell, output."""
    in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)
    cell = torch.addcmul(forget_gate.sigmoid() * cell, in_gate.sigmoid(), candidate.tanh())
    return out_gate.sigmoid() * cell.tanh(), cell


def _input_product(tensors: Tensors, layer: int) -> Linear:
    """Input part of the gates: [N, H] -> [N, 4 * H], biases included."""
    return Linear(_weight(tensors, layer, "input"), _bias(tensors, layer), has_single_rows=True)


def _weight(tensors: Tensors, layer: int, part: str) -> torch.Tensor:
    return tensors[f"predictor.lstm.{layer}.{part}_weight"]


def _bias(tensors: Tensors, layer: int) -> torch.Tensor:
    prefix = f"predictor.lstm.{layer}."
    return tensors[prefix + "input_bias"] + tensors[prefix + "hidden_bias"]
