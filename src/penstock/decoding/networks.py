"""The prediction network and joint as a search sees them: rows in, rows out, every constant projection done once.

A search knows nothing of LSTMs: predictor states are tuples of tensors with a leading row axis.
"""

from typing import NamedTuple

import torch

from penstock.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]
PredictorState = tuple[torch.Tensor, ...]

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class Scores(NamedTuple):
    """What the joint says of N (frame, predictor) pairs. V labels without blank, D durations."""

    log_probs: torch.Tensor
    """[N, V + 1] log-probabilities, blank last."""
    extra: torch.Tensor | None
    """[N, V] added to the ranking of labels and accumulated apart (language models, boosting), or None."""
    durations: torch.Tensor | None
    """[N, D] log-probabilities of the durations, or None for RNN-T."""

    @property
    def blank(self) -> torch.Tensor:
        """[N]"""
        return self.log_probs[:, -1]

    @property
    def labels(self) -> torch.Tensor:
        """[N, V]"""
        return self.log_probs[:, :-1]


class Prediction(NamedTuple):
    """Predictor output for N hypotheses."""

    rows: torch.Tensor
    """[N, J], projected into the joint."""
    state: PredictorState
    """Tensors [N, ...]."""


class TransducerNetwork:
    """LSTM prediction network and joint of an RNN-T or TDT checkpoint."""

    def __init__(self, checkpoint: Checkpoint, device="cpu", dtype=torch.float32):
        config = checkpoint.config.transducer
        tensors = {n: t.to(device, dtype) for n, t in checkpoint.tensors("predictor.", "joint.").items()}
        self.config = config
        self.device, self.dtype = torch.device(device), dtype
        self.joint_hidden = config.joint_hidden
        self._layers = [_LstmLayer(tensors, layer) for layer in range(config.predictor_layers)]
        # The first layer's input product depends on the label alone: a table [V + 1, 4 * H] instead of a product.
        self._label_gates = self._layers[0].input_gates(tensors["predictor.embedding.weight"])
        self._predictor_weight = tensors["joint.predictor.weight"].t().contiguous()
        self._encoder_weight = tensors["joint.encoder.weight"].t().contiguous()
        self._encoder_bias, self._predictor_bias = tensors["joint.encoder.bias"], tensors["joint.predictor.bias"]
        self._output_weight = tensors["joint.output.weight"].t().contiguous()
        self._output_bias = tensors["joint.output.bias"]
        self._activation = _ACTIVATIONS[config.joint_activation]

    @property
    def blank(self) -> int:
        """The blank label; also what the predictor hears before the first label."""
        return self.config.vocabulary_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each predictor state tensor without the row axis."""
        shape = (self.config.predictor_layers, self.config.predictor_hidden)
        return (shape, shape)

    def project_encoder(self, encoded: torch.Tensor) -> torch.Tensor:
        """Encoder frames [B, T, D] -> joint rows [B, T, J]; once per chunk."""
        rows = torch.addmm(self._encoder_bias, encoded.flatten(0, 1).to(self.dtype), self._encoder_weight)
        return rows.view(*encoded.shape[:2], -1)

    def start(self, rows: int) -> Prediction:
        """The prediction before any label."""
        zeros = tuple(torch.zeros(rows, *shape, device=self.device, dtype=self.dtype) for shape in self.state_shapes)
        return self.predict(torch.full((rows,), self.blank, device=self.device), zeros)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64."""
        hidden, cell = state  # [N, layers, H]
        new_hidden, new_cell = [], []
        gates = self._label_gates.index_select(0, labels)
        for i, layer in enumerate(self._layers):
            if i > 0:
                gates = layer.input_gates(new_hidden[-1])
            h, c = layer.step(gates, hidden[:, i], cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        rows = torch.addmm(self._predictor_bias, new_hidden[-1], self._predictor_weight)
        return Prediction(rows, (torch.stack(new_hidden, 1), torch.stack(new_cell, 1)))

    def score(self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor) -> Scores:
        """Scores N pairs: frame_rows [N, J] or broadcastable, predictor_rows [N, J]."""
        hidden = self._activation(frame_rows + predictor_rows)
        logits = torch.addmm(self._output_bias, hidden.flatten(0, -2), self._output_weight)
        labels = self.config.vocabulary_size + 1
        if not self.config.is_tdt:
            return Scores(torch.log_softmax(logits, dim=-1), None, None)
        return Scores(
            torch.log_softmax(logits[:, :labels], dim=-1), None, torch.log_softmax(logits[:, labels:], dim=-1)
        )


class _LstmLayer:
    def __init__(self, tensors: Tensors, layer: int):
        prefix = f"predictor.lstm.{layer}."
        self._input_weight = tensors[prefix + "input_weight"].t().contiguous()
        self._hidden_weight = tensors[prefix + "hidden_weight"].t().contiguous()
        self._bias = tensors[prefix + "input_bias"] + tensors[prefix + "hidden_bias"]

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, 4 * H], biases included."""
        return torch.addmm(self._bias, x, self._input_weight)

    def step(self, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """gates: [N, 4 * H] in the order input, forget, cell, output; hidden, cell: [N, H]."""
        gates = torch.addmm(gates, hidden, self._hidden_weight)
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)
        cell = torch.addcmul(forget_gate.sigmoid() * cell, in_gate.sigmoid(), candidate.tanh())
        return out_gate.sigmoid() * cell.tanh(), cell
