"""Layers of transducer networks: the predictor's LSTM, and the projection of encoder frames, also to CTC logits."""

import torch

from penstock import linear
from penstock.encoder.int8 import Int8Choice
from penstock.kernels.contracts import LstmLayerWeights
from penstock.linear import Linear
from penstock.model.bundle import Checkpoint

Tensors = dict[str, torch.Tensor]
LstmState = tuple[torch.Tensor, ...]
"""Hidden and cell values, each [N, layers, H]."""
_RANDOM_LABELS = (16, 32)
"""Steps, hypotheses."""


class LstmLayer:
    """The products of one layer, [N, H] to [N, 4 * H]."""

    def __init__(self, tensors: Tensors, layer: int):
        self.input = _input_product(tensors, layer) if layer else None
        """None in the first layer, whose input is a label."""
        self.hidden = Linear(_weight(tensors, layer, "hidden"), has_single_rows=True)


class Lstm:
    """Embedding and LSTM layers of a predictor."""

    def __init__(self, tensors: Tensors, layers: int):
        """tensors: a bundle's, `predictor.embedding.weight` and `predictor.lstm.*`."""
        self.layers = [LstmLayer(tensors, layer) for layer in range(layers)]
        # The first layer's input product depends on the label alone: a table [V + 1, 4 * H] instead of a product.
        self.label_gates = _input_product(tensors, 0)(tensors["predictor.embedding.weight"])

    def step(self, labels: torch.Tensor, state: LstmState) -> tuple[torch.Tensor, LstmState]:
        """Runs one step: returns the output [N, H] after `labels` [N] and the new state."""
        hidden, cell = state  # [N, layers, H]
        new_hidden: list[torch.Tensor] = []
        new_cell: list[torch.Tensor] = []
        gates = self.label_gates.index_select(0, labels)  # [N, 4 * H]
        for i, layer in enumerate(self.layers):
            if layer.input is not None:
                gates = layer.input(new_hidden[-1])
            h, c = _next_state(layer.hidden.add_to(gates, hidden[:, i]), cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        return new_hidden[-1], (_stacked(new_hidden), _stacked(new_cell))

    @torch.no_grad()
    def use_int8(self) -> Int8Choice:
        """Replaces large products on a CPU by those in int8 that are exact enough on random labels."""
        int8 = Int8Choice(tensor_names=lambda _: [])
        # Of matrices with just that many numbers, as the bundled models', one row takes longer in int8.
        if self.layers[0].hidden.weight.numel() > linear.MIN_PACKED_NUMBERS:
            for number, layer in enumerate(self.layers):
                int8.convert(f"predictor.lstm.{number}", layer, self._follow_random_labels)
        return int8

    def _follow_random_labels(self) -> None:
        table = self.label_gates
        labels = torch.randint(len(table), _RANDOM_LABELS, generator=torch.Generator().manual_seed(0))
        zeros = table.new_zeros(labels.shape[1], len(self.layers), table.shape[1] // 4)
        state: LstmState = (zeros, zeros)
        for step in labels:
            _, state = self.step(step, state)


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


class FrameProjection:
    """A linear layer over encoder frames x, before which a model with language prompts has two others.

    These are `W2 relu(W1 [x; onehot(p)] + b1) + b2` for the prompt p of a stream. A product with a one-hot vector is a
    column, so W1's columns of the prompts are a table of rows, to which b1 is already added.
    """

    def __init__(self, checkpoint: Checkpoint, weight: torch.Tensor, bias: torch.Tensor):
        """weight [J, D], bias [J]: the layer's, on their device."""
        self.is_folded = False
        """True where the layer's weight has that of the prompts' second layer in it."""
        self._prompts: _Prompts | None = None
        if checkpoint.config.prompt is not None:
            read = checkpoint.tensors("prompt.").items()
            tensors = {name: tensor.to(weight.device, weight.dtype) for name, tensor in read}
            joint, (width, hidden) = len(weight), tensors["prompt.out.weight"].shape
            # W2 becomes a part of the layer where that saves products: it does in a joint, not in a CTC head whose
            # labels outnumber the encoder's width.
            self.is_folded = joint * hidden < width * hidden + joint * width
            if self.is_folded:
                weight, bias = _folded(weight, bias, tensors)
            self._prompts = _Prompts(tensors, self.is_folded)
        self._dtype, self._layer = weight.dtype, Linear(weight, bias)

    def __call__(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Projects encoder frames [B, T, D] to [B, T, J]; T may be 0.

        prompts: [B] int64, of a model with language prompts; else not used.
        """
        frames = encoded.flatten(0, 1).to(self._dtype)
        if self._prompts is not None:
            assert prompts is not None, "a model with language prompts needs one for each stream"
            frames = self._prompts.apply(frames, prompts.repeat_interleave(encoded.shape[1]))
        rows = self._layer(frames)
        return rows.view(*encoded.shape[:2], rows.shape[1])


class _Prompts:
    def __init__(self, tensors: Tensors, is_folded: bool):
        self._table, self._input = tensors["prompt.table"], Linear(tensors["prompt.in.weight"])
        self._output = None if is_folded else Linear(tensors["prompt.out.weight"], tensors["prompt.out.bias"])

    def apply(self, frames: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        """Frames [N, D] with prompts [N] after both layers, [N, D], or where W2 is folded after the first, [N, H]."""
        hidden = self._input.add_to(self._table.index_select(0, prompts), frames).relu_()
        return hidden if self._output is None else self._output(hidden)


def _folded(weight: torch.Tensor, bias: torch.Tensor, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [J, H] and bias [J] that do to W2's input what weight [J, D] and bias [J] do to its output."""
    wide = weight.double()
    folded = wide @ tensors["prompt.out.weight"].double()
    shifted = wide @ tensors["prompt.out.bias"].double() + bias.double()
    return folded.to(weight.dtype), shifted.to(bias.dtype)
