"""The prediction network (predictor) and joint of a Transducer, as batched functions over hypotheses.

Every product that does not depend on the pair of frame and prediction is computed once: the encoder projection per
chunk, the predictor projection per label. Predictor states are opaque to searches: tuples of tensors [N, ...].
"""

from typing import TYPE_CHECKING, NamedTuple

import torch

from penstock.decoding.tensor_tree import copy_into, overwrite
from penstock.errors import CheckpointError
from penstock.kernels.capability import AUTO, FUSED, resolve
from penstock.kernels.contracts import JointChoice, JointWeights, LstmLayerWeights, PredictorStates, PredictorWeights
from penstock.model.bundle import Checkpoint
from penstock.runtime import prepare_device

if TYPE_CHECKING:
    from penstock.kernels.joint import FusedJoint
    from penstock.kernels.predictor import FusedPredictor

Tensors = dict[str, torch.Tensor]
PredictorState = tuple[torch.Tensor, ...]

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class Scores(NamedTuple):
    """Joint output of N pairs of frame and prediction. V labels without blank, D durations."""

    log_probs: torch.Tensor
    """[N, V + 1] log-probabilities, blank last."""
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
    """The greedy choices of B hypotheses at W frames each."""

    is_blank: torch.Tensor
    """[B, W] bool, True where blank's log-probability is above all labels', external scores not included."""
    label: torch.Tensor
    """[B, W] int64, the best label."""
    score: torch.Tensor
    """[B, W] its log-probability, of the network's dtype, without external scores."""
    duration: torch.Tensor | None
    """[B, W] int64, the best duration's index into the model's list; None for RNN-T."""
    labels: torch.Tensor | None
    """[B, W, V] log-probabilities of all labels; None from the fused kernel, which does not write them."""


class Prediction(NamedTuple):
    """Predictor output of N hypotheses."""

    projected: torch.Tensor
    """[N, J], projected into the joint."""
    state: PredictorState
    """Tensors [N, ...]."""


class TransducerNetwork:
    """LSTM prediction network and joint of an RNN-T or TDT checkpoint.

    `choose` and `replace_`, the inner loop of greedy search, run as fused kernels if `kernels` selects them.
    `predict` and `score` are always PyTorch.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: str = AUTO,
    ):
        """kernels: "auto", "torch" or "fused"; PenstockError where "fused" is not possible (`capability.resolve`)."""
        config = checkpoint.config.transducer
        if config is None:
            raise CheckpointError(f"{checkpoint.directory}: has no transducer, only {checkpoint.config.head_name}")
        tensors = {n: t.to(device, dtype) for n, t in checkpoint.tensors("predictor.", "joint.").items()}
        self.config = config
        self.device, self.dtype = prepare_device(device), dtype
        self.joint_hidden = config.joint_hidden
        self.frame_width = config.joint_hidden
        """Width of `project_encoder`'s output."""
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
        """The selection, "torch" or "fused"."""
        self._fused_joint: FusedJoint | None = None
        self._fused_predictor: FusedPredictor | None = None
        if self.kernels == FUSED:
            self._fused_joint, self._fused_predictor = self._fuse()

    @property
    def blank(self) -> int:
        """The blank label; also the predictor's input before the first label."""
        return self.config.vocabulary_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each predictor state tensor without the batch axis."""
        shape = (self.config.predictor_layers, self.config.predictor_hidden)
        return (shape, shape)

    def project_encoder(self, encoded: torch.Tensor) -> torch.Tensor:
        """Projects encoder frames [B, T, D] into the joint, [B, T, J]; once per chunk."""
        projected = torch.addmm(self._encoder_bias, encoded.flatten(0, 1).to(self.dtype), self._encoder_weight)
        return projected.view(*encoded.shape[:2], self.frame_width)

    def start(self, count: int) -> Prediction:
        """The prediction of `count` hypotheses before their first label."""
        zeros = tuple(torch.zeros(count, *shape, device=self.device, dtype=self.dtype) for shape in self.state_shapes)
        return self.predict(torch.full((count,), self.blank, device=self.device), zeros)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64."""
        output, state = self._recur(labels, state)
        return Prediction(torch.addmm(self._predictor_bias, output, self._predictor_weight), state)

    def replace_(self, labels: torch.Tensor, is_label: torch.Tensor, prediction: Prediction) -> None:
        """Overwrites `prediction` by the prediction after `labels` [N] int64 where is_label [N] bool holds.

        Where it does not, any valid label may stand in `labels`.
        """
        if self._fused_predictor is None:
            overwrite(prediction, is_label, self.predict(labels, prediction.state), prediction)
            return
        old = PredictorStates(prediction.projected, *prediction.state)
        copy_into(old, self._fused_predictor(labels, is_label, old))

    def choose(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, extra: torch.Tensor | None = None
    ) -> Choice:
        """Makes the greedy choice at projected_frames [B, W, J], each with its projected_predictions [B, J].

        extra: [B, V] float32, added to the ranking of labels only: not to blank's, nor to the score returned. NaN input
        gives arbitrary choices, but always valid indices.
        """
        if self._fused_joint is not None:
            return self._choose_fused(self._fused_joint(projected_frames, projected_predictions, extra), extra)
        shape = projected_frames.shape[:2]
        # 1) score every pair of frame and prediction: [B * W, V]
        scores = self.score(projected_frames, projected_predictions.unsqueeze(1))
        score, label = scores.labels.max(dim=-1)
        # 2) blank or label: decided by the network alone, [B, W]
        is_blank = (scores.blank > score).view(shape)
        score, label, labels = score.view(shape), label.view(shape), scores.labels.unflatten(0, shape)
        # 3) which label: with the external scores, which do not depend on the frame
        if extra is not None:
            label = (labels + extra.unsqueeze(1)).argmax(dim=-1)
            score = labels.gather(-1, label.unsqueeze(-1)).squeeze(-1)
        # 4) TDT: the duration, of labels and blanks alike
        duration = None if scores.durations is None else scores.durations.argmax(dim=-1).view(shape)
        return Choice(is_blank, label, score, duration, labels)

    def _choose_fused(self, choice: JointChoice, extra: torch.Tensor | None) -> Choice:
        is_blank = choice.blank_score > choice.label_score
        label, score = choice.label, choice.label_score
        if extra is not None:
            assert choice.fused_label is not None and choice.fused_label_score is not None
            label, score = choice.fused_label, choice.fused_label_score
        return Choice(is_blank, label, score.to(self.dtype), choice.duration, None)

    def _fuse(self) -> "tuple[FusedJoint, FusedPredictor]":
        """The kernels, which hold their own copies of the weights."""
        from penstock.kernels.joint import FusedJoint  # here, because they import Triton
        from penstock.kernels.predictor import FusedPredictor

        config = self.config
        joint = JointWeights(self._output_weight, self._output_bias, config.vocabulary_size, config.joint_activation)
        layers = tuple(layer.weights(is_first=i == 0) for i, layer in enumerate(self._layers))
        predictor = PredictorWeights(self._label_gates, layers, self._predictor_weight, self._predictor_bias)
        return FusedJoint(joint), FusedPredictor(predictor)

    def _recur(self, labels: torch.Tensor, state: PredictorState) -> tuple[torch.Tensor, PredictorState]:
        """Runs one LSTM step: returns the output [N, H] after `labels` [N] and the new state."""
        hidden, cell = state  # [N, layers, H]
        new_hidden: list[torch.Tensor] = []
        new_cell: list[torch.Tensor] = []
        gates = self._label_gates.index_select(0, labels)
        for i, layer in enumerate(self._layers):
            if i > 0:
                gates = layer.input_gates(new_hidden[-1])
            h, c = layer.step(gates, hidden[:, i], cell[:, i])
            new_hidden.append(h)
            new_cell.append(c)
        return new_hidden[-1], (torch.stack(new_hidden, 1), torch.stack(new_cell, 1))

    def score(self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor) -> Scores:
        """Scores N pairs: projected_frames [N, J] or broadcastable, projected_predictions [N, J]."""
        hidden = self._activation(projected_frames + projected_predictions)
        logits = torch.addmm(self._output_bias, hidden.flatten(0, -2), self._output_weight)
        labels = self.config.vocabulary_size + 1
        if not self.config.is_tdt:
            return Scores(torch.log_softmax(logits, dim=-1), None)
        return Scores(torch.log_softmax(logits[:, :labels], dim=-1), torch.log_softmax(logits[:, labels:], dim=-1))


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
