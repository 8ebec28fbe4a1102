"""The LSTM of a prediction network (predictor), one label at a time for batches of hypotheses."""

import torch

from penstock.kernels.contracts import LstmLayerWeights

Tensors = dict[str, torch.Tensor]
LstmState = tuple[torch.Tensor, ...]
"""Hidden and cell values, each [N, layers, H]."""


class Lstm:
    """Embedding and LSTM layers of a predictor."""

    def __init__(self, tensors: Tensors, layers: int):
        """tensors: a bundle's, `predictor.embedding.weight` and `predictor.lstm.*`."""
        self._layers = [_LstmLayer(tensors, layer) for layer in range(layers)]
        # The first layer's input product depends on the label alone: a table [V + 1, 4 * H] instead of a product.
        self.label_gates = self._layers[0].input_gates(tensors["predictor.embedding.weight"])

    def step(self, labels: torch.Tensor, state: LstmState) -> tuple[torch.Tensor, LstmState]:
        """Runs one step: returns the output [N, H] after `labels` [N] and the new state."""
        hidden, cell = state  # [N, layers, H]
        new_hidden: list[torch.Tensor] = []
        new_cell: list[torch.Tensor] = []
        gates = self.label_gates.index_select(0, labels)
        for i, layer in enumerate(self._layers):
            if i > 0:
                gates = layer.input_gates(new_hidden[-1])
            h, c = layer.step(gates, hidden[:, i], cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        return new_hidden[-1], (torch.stack(new_hidden, 1), torch.stack(new_cell, 1))

    def weights(self) -> tuple[LstmLayerWeights, ...]:
        """The layers' weights for the kernels."""
        return tuple(layer.weights(is_first=i == 0) for i, layer in enumerate(self._layers))


class _LstmLayer:
    def __init__(self, tensors: Tensors, layer: int):
        prefix = f"predictor.lstm.{layer}."
        self._input_weight = tensors[prefix + "input_weight"].t().contiguous()
        self._hidden_weight = tensors[prefix + "hidden_weight"].t().contiguous()
        self._bias = tensors[prefix + "input_bias"] + tensors[prefix + "hidden_bias"]

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """Input part of the gates: [N, H] -> [N, 4 * H], biases included."""
        return torch.addmm(self._bias, x, self._input_weight)

    def weights(self, is_first: bool) -> LstmLayerWeights:
        """The layer's weights for the kernels; the first layer's input product is in the label table."""
        if is_first:
            return LstmLayerWeights(None, self._hidden_weight, None)
        return LstmLayerWeights(self._input_weight, self._hidden_weight, self._bias)

    def step(self, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the new hidden and cell [N, H]; gates: [N, 4 * H] in the order input, forget, cell, output."""
        gates = torch.addmm(gates, hidden, self._hidden_weight)
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)
        cell = torch.addcmul(forget_gate.sigmoid() * cell, in_gate.sigmoid(), candidate.tanh())
        return out_gate.sigmoid() * cell.tanh(), cell
