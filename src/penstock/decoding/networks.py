"""The prediction network and joint as a search sees them: rows in, rows out, every constant projection done once.

A search knows nothing of LSTMs: predictor states are tuples of tensors with a leading row axis.
"""

from typing import NamedTuple

import torch

from penstock.checkpoint import Checkpoint
from penstock.device import prepare_device
from penstock.kernels.capability import AUTO, FUSED, TORCH, resolve
from penstock.kernels.contracts import JointWeights, LstmLayerWeights, PredictorRows, PredictorWeights
from penstock.kernels.joint import FusedJoint
from penstock.kernels.predictor import FusedPredictor

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


class Choice(NamedTuple):
    """What greedy search asks of the joint, for B hypotheses at W frames each."""

    is_blank: torch.Tensor
    """[B, W] bool: blank leads over all labels, whatever is added to them."""
    label: torch.Tensor
    """[B, W] int64, the best label."""
    score: torch.Tensor
    """[B, W] its log-probability, of the network's type, without what was added."""
    duration: torch.Tensor | None
    """[B, W] int64, the best duration's index into the model's list; None for RNN-T."""
    labels: torch.Tensor | None
    """[B, W, V] log-probabilities of all labels; None where kernels never write them."""


class Prediction(NamedTuple):
    """Predictor output for N hypotheses."""

    rows: torch.Tensor
    """[N, J], projected into the joint."""
    state: PredictorState
    """Tensors [N, ...]."""


class TransducerNetwork:
    """LSTM prediction network and joint of an RNN-T or TDT checkpoint.

    `choose` and `replace_` are what greedy search repeats; kernels do them where the option says so. `predict` and
    `score` are torch always.
    """

    def __init__(self, checkpoint: Checkpoint, device="cpu", dtype=torch.float32, kernels: str = AUTO):
        """kernels: "auto", "torch" or "fused"; PenstockError where "fused" cannot be. See `capability.resolve`."""
        config = checkpoint.config.transducer
        tensors = {n: t.to(device, dtype) for n, t in checkpoint.tensors("predictor.", "joint.").items()}
        self.config = config
        self.device, self.dtype = prepare_device(device), dtype
        self.joint_hidden = config.joint_hidden
        self.frame_width = config.joint_hidden
        """Width of the rows that `project_encoder` makes."""
        self._layers = [_LstmLayer(tensors, layer) for layer in range(config.predictor_layers)]
        # The first layer's input product depends on the label alone: a table [V + 1, 4 * H] instead of a product.
        self._label_gates = self._layers[0].input_gates(tensors["predictor.embedding.weight"])
        self._predictor_weight = tensors["joint.predictor.weight"].t().contiguous()
        self._encoder_weight = tensors["joint.encoder.weight"].t().contiguous()
        self._encoder_bias, self._predictor_bias = tensors["joint.encoder.bias"], tensors["joint.predictor.bias"]
        self._output_weight = tensors["joint.output.weight"].t().contiguous()
        self._output_bias = tensors["joint.output.bias"]
        self._activation = _ACTIVATIONS[config.joint_activation]
        self.kernels = resolve(kernels, self.device, dtype)
        """What greedy search runs on, "torch" or "fused", for the log."""
        self._fused_joint, self._fused_predictor = self._fuse() if self.kernels == FUSED else (None, None)

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
        return rows.view(*encoded.shape[:2], self.frame_width)

    def start(self, rows: int) -> Prediction:
        """The prediction before any label."""
        zeros = tuple(torch.zeros(rows, *shape, device=self.device, dtype=self.dtype) for shape in self.state_shapes)
        return self.predict(torch.full((rows,), self.blank, device=self.device), zeros)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64."""
        output, state = self._recur(labels, state)
        return Prediction(torch.addmm(self._predictor_bias, output, self._predictor_weight), state)

    def replace_(self, labels: torch.Tensor, is_label: torch.Tensor, prediction: Prediction) -> None:
        """Writes the prediction after `labels` [N] int64 over those rows of `prediction` where is_label [N] bool holds.

        Labels of other rows may be any that there are.
        """
        if self._fused_predictor is None:
            new = self.predict(labels, prediction.state)
            replace_rows_(prediction.rows, is_label, new.rows)
            for old_state, new_state in zip(prediction.state, new.state, strict=True):
                replace_rows_(old_state, is_label, new_state)
            return
        old = PredictorRows(prediction.rows, *prediction.state)
        for place, new in zip(old, self._fused_predictor(labels, is_label, old), strict=True):
            place.copy_(new)

    def choose(
        self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor, extra: torch.Tensor | None = None
    ) -> Choice:
        """The greedy choice for frame_rows [B, W, J], each with its predictor_rows [B, J].

        extra: [B, V] float32, added to the ranking of labels, not to that of blank, nor to the score returned. What is
        said of rows with NaN is rubbish, but an index is always one that there is.
        """
        if self._fused_joint is not None:
            return self._choose_fused(frame_rows, predictor_rows, extra)
        shape = frame_rows.shape[:2]
        scores = self.score(frame_rows, predictor_rows.unsqueeze(1))
        score, label = scores.labels.max(dim=-1)
        is_blank = (scores.blank > score).view(shape)
        score, label, labels = score.view(shape), label.view(shape), scores.labels.unflatten(0, shape)
        if extra is not None:
            label = (labels + extra.unsqueeze(1)).argmax(dim=-1)
            score = labels.gather(-1, label.unsqueeze(-1)).squeeze(-1)
        duration = None if scores.durations is None else scores.durations.argmax(dim=-1).view(shape)
        return Choice(is_blank, label, score, duration, labels)

    def _choose_fused(
        self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor, extra: torch.Tensor | None
    ) -> Choice:
        choice = self._fused_joint(frame_rows, predictor_rows, extra)
        is_blank = choice.blank_score > choice.label_score
        label, score = choice.label, choice.label_score
        if extra is not None:
            label, score = choice.fused_label, choice.fused_label_score
        return Choice(is_blank, label, score.to(self.dtype), choice.duration, None)

    def _fuse(self) -> tuple[FusedJoint, FusedPredictor]:
        """Both hold their own copies of the weights."""
        config = self.config
        joint = JointWeights(self._output_weight, self._output_bias, config.vocabulary_size, config.joint_activation)
        layers = tuple(layer.weights(is_first=i == 0) for i, layer in enumerate(self._layers))
        predictor = PredictorWeights(self._label_gates, layers, self._predictor_weight, self._predictor_bias)
        return FusedJoint(joint, use_kernel=True), FusedPredictor(predictor, use_kernel=True)

    def _recur(self, labels: torch.Tensor, state: PredictorState) -> tuple[torch.Tensor, PredictorState]:
        """The LSTM's output [N, H] after `labels`, and its state."""
        hidden, cell = state  # [N, layers, H]
        new_hidden, new_cell = [], []
        gates = self._label_gates.index_select(0, labels)
        for i, layer in enumerate(self._layers):
            if i > 0:
                gates = layer.input_gates(new_hidden[-1])
            h, c = layer.step(gates, hidden[:, i], cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        return new_hidden[-1], (torch.stack(new_hidden, 1), torch.stack(new_cell, 1))

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


class UnprojectedNetwork(TransducerNetwork):
    """The same with both projections done anew for each pair that is scored: what precomputing is measured against.

    Its frame rows are encoder frames [B, T, D], its predictor rows the LSTM's output [N, H].
    """

    def __init__(self, checkpoint: Checkpoint, device="cpu", dtype=torch.float32):
        super().__init__(checkpoint, device, dtype, TORCH)
        self.frame_width = len(self._encoder_weight)

    def project_encoder(self, encoded: torch.Tensor) -> torch.Tensor:
        """Nothing yet."""
        return encoded.to(self.dtype)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """As for the other, without the projection."""
        return Prediction(*self._recur(labels, state))

    def score(self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor) -> Scores:
        """Projects both, then scores."""
        frame_rows = torch.matmul(frame_rows, self._encoder_weight) + self._encoder_bias
        return super().score(frame_rows, torch.matmul(predictor_rows, self._predictor_weight) + self._predictor_bias)


class _LstmLayer:
    def __init__(self, tensors: Tensors, layer: int):
        prefix = f"predictor.lstm.{layer}."
        self._input_weight = tensors[prefix + "input_weight"].t().contiguous()
        self._hidden_weight = tensors[prefix + "hidden_weight"].t().contiguous()
        self._bias = tensors[prefix + "input_bias"] + tensors[prefix + "hidden_bias"]

    def input_gates(self, x: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, 4 * H], biases included."""
        return torch.addmm(self._bias, x, self._input_weight)

    def weights(self, is_first: bool) -> LstmLayerWeights:
        """As kernels take them."""
        if is_first:
            return LstmLayerWeights(None, self._hidden_weight, None)
        return LstmLayerWeights(self._input_weight, self._hidden_weight, self._bias)

    def step(self, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """gates: [N, 4 * H] in the order input, forget, cell, output; hidden, cell: [N, H]."""
        gates = torch.addmm(gates, hidden, self._hidden_weight)
        in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=1)
        cell = torch.addcmul(forget_gate.sigmoid() * cell, in_gate.sigmoid(), candidate.tanh())
        return out_gate.sigmoid() * cell.tanh(), cell


def replace_rows_(old: torch.Tensor, condition: torch.Tensor, new: torch.Tensor) -> None:
    """Rows of `new` where `condition` [B] holds, into `old`; both [B, ...]."""
    torch.where(condition.view(-1, *(1,) * (new.dim() - 1)), new, old, out=old)
