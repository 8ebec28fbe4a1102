"""The transducer networks, and `open_network`, which opens that of a checkpoint.

StandardNetwork has the LSTM predictor and the joint of an RNN-T or TDT checkpoint. Every product that does not depend
on the pair of frame and prediction is computed once: the encoder projection per chunk, the predictor projection per
label. FactorizedNetwork decides blank apart from the labels, which an internal language model (ILM) scores.
"""

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

from penstock.decoding.tensors.tensor_tree import copy_into
from penstock.decoding.transducer.interface import (
    Choice,
    IlmWeights,
    Prediction,
    PredictorState,
    Scores,
    TransducerNetwork,
    head_of,
)
from penstock.decoding.transducer.layers import FrameProjection, Lstm, Tensors, kernel_weights
from penstock.errors import SettingError
from penstock.kernels.capability import AUTO, FUSED, TORCH, resolve
from penstock.kernels.contracts import JointChoice, JointWeights, PredictorStates, PredictorWeights
from penstock.linear import Linear
from penstock.model.bundle import Checkpoint

if TYPE_CHECKING:
    from penstock.kernels.joint import FusedJoint
    from penstock.kernels.predictor import FusedPredictor

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def open_network(
    checkpoint: Checkpoint,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: str = AUTO,
) -> TransducerNetwork:
    """The network of an RNN-T, TDT or factorized checkpoint; CheckpointError for one without a transducer.

    kernels: "auto", "torch" or "fused"; SettingError where "fused" is not possible, and for 16 bits without it: PyTorch
    would round logits to them, and searches must not choose between rounded logits.
    """
    kind = FactorizedNetwork if head_of(checkpoint).is_factorized else StandardNetwork
    network = kind(checkpoint, device, dtype, kernels)
    if dtype in (torch.float16, torch.bfloat16) and network.kernels == TORCH:
        name = str(dtype).removeprefix("torch.")
        raise SettingError(f"a transducer in {name} needs fused kernels on its device; accepted: float32")
    return network


class StandardNetwork(TransducerNetwork):
    """`choose` and `replace_` run as fused kernels if `kernels` selects them; all else is always PyTorch."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str, dtype: torch.dtype, kernels: str):
        """kernels: "auto", "torch" or "fused"; SettingError where "fused" is not possible (`capability.resolve`)."""
        super().__init__(head_of(checkpoint), device, dtype)
        tensors = {n: t.to(device, dtype) for n, t in checkpoint.tensors("predictor.", "joint.").items()}
        self.lstm = Lstm(tensors, self.config.predictor_layers)
        weight, bias = tensors["joint.predictor.weight"], tensors["joint.predictor.bias"]
        self._predictor_projection = Linear(weight, bias, has_single_rows=True)
        self._projection = FrameProjection(checkpoint, tensors["joint.encoder.weight"], tensors["joint.encoder.bias"])
        self._output = Linear(tensors["joint.output.weight"], tensors["joint.output.bias"])
        self._activation = _ACTIVATIONS[self.config.joint_activation]
        self.kernels = resolve(kernels, self.device, dtype)
        self._fused_joint: FusedJoint | None = None
        self._fused_predictor: FusedPredictor | None = None
        if self.kernels == FUSED:
            self._fused_joint, self._fused_predictor = self._fuse(tensors)

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Projects encoder frames [B, T, D] into the joint, [B, T, J]; once per chunk. prompts: [B] int64, or None."""
        return self._projection(encoded, prompts)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64."""
        output, state = self.lstm.step(labels, state)
        return Prediction(self._predictor_projection(output), state)

    def replace_(self, labels: torch.Tensor, is_label: torch.Tensor, prediction: Prediction) -> None:
        """Implements `TransducerNetwork.replace_`."""
        if self._fused_predictor is None:
            super().replace_(labels, is_label, prediction)
            return
        old = PredictorStates(prediction.projected, *prediction.state)
        copy_into(old, self._fused_predictor(labels, is_label, old))

    def choose(
        self,
        projected_frames: torch.Tensor,
        projected_predictions: torch.Tensor,
        extra: torch.Tensor | None = None,
        ilm: IlmWeights = (),
    ) -> Choice:
        """Implements `TransducerNetwork.choose`; the kernel does not write the scores of all labels."""
        if self._fused_joint is None:
            return super().choose(projected_frames, projected_predictions, extra, ilm)
        return self._choose_fused(self._fused_joint(projected_frames, projected_predictions, extra), extra)

    def _choose_fused(self, choice: JointChoice, extra: torch.Tensor | None) -> Choice:
        is_blank = choice.blank_score > choice.label_score
        label, score = choice.label, choice.label_score
        if extra is not None:
            assert choice.fused_label is not None and choice.fused_label_score is not None
            label, score = choice.fused_label, choice.fused_label_score
        return Choice(is_blank, label, score.to(self.dtype), choice.duration, None)

    def _fuse(self, tensors: Tensors) -> "tuple[FusedJoint, FusedPredictor]":
        """The kernels, which hold their own copies of the weights."""
        from penstock.kernels.joint import FusedJoint  # here, because they import Triton
        from penstock.kernels.predictor import FusedPredictor

        config, layers = self.config, kernel_weights(tensors, self.config.predictor_layers)
        (output, output_bias), (projection, projection_bias) = (
            (tensors[f"joint.{name}.weight"].t().contiguous(), tensors[f"joint.{name}.bias"])
            for name in ("output", "predictor")
        )
        joint = JointWeights(output, output_bias, config.vocabulary_size, config.joint_activation)
        predictor = PredictorWeights(self.lstm.label_gates, layers, projection, projection_bias)
        return FusedJoint(joint), FusedPredictor(predictor)

    def score(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: IlmWeights = ()
    ) -> Scores:
        """Scores N pairs, without `extra`."""
        hidden = self._activation(projected_frames + projected_predictions)
        logits = self._output(hidden.flatten(0, -2))
        labels = self.config.vocabulary_size + 1
        if not self.config.is_tdt:
            return Scores(torch.log_softmax(logits, dim=-1), None)
        return Scores(torch.log_softmax(logits[:, :labels], dim=-1), torch.log_softmax(logits[:, labels:], dim=-1))


class FactorizedNetwork(TransducerNetwork):
    """Blank branch, acoustic branch and internal language model. Always PyTorch: there are no fused kernels for it.

    "Effective internal language model training and fusion for factorized transducer model" (docs/factorized.md). A
    row is one tensor [J + V]: of an encoder frame h [A h | W h], of a prediction after label y [B e_y | log P_ilm].
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str, dtype: torch.dtype, kernels: str):
        """kernels: "auto" or "torch"; SettingError for "fused"."""
        super().__init__(head_of(checkpoint), device, dtype)
        if kernels == FUSED:
            reason = f"a {self.config.name} has none; accepted: {AUTO}, {TORCH}"
            raise SettingError(f'kernels "{FUSED}" are not possible: {reason}')
        resolve(kernels, self.device, dtype)
        self.kernels = TORCH
        names = checkpoint.tensors("predictor.", "blank.", "acoustic.")
        tensors = {name: tensor.to(device, dtype) for name, tensor in names.items()}
        self.lstm = Lstm(tensors, self.config.predictor_layers)
        self._ilm_output = Linear(tensors["predictor.output.weight"], tensors["predictor.output.bias"])
        self._blank_table = tensors["blank.embedding.weight"]
        self._blank_output = Linear(tensors["blank.output.weight"], tensors["blank.output.bias"])
        # One product makes the whole row of a frame: [D, J + V].
        branches = ("blank.encoder", "acoustic")
        weight, bias = (torch.cat([tensors[f"{name}.{part}"] for name in branches]) for part in ("weight", "bias"))
        self._projection = FrameProjection(checkpoint, weight, bias)
        self._widths = (self.config.joint_hidden, self.config.vocabulary_size)

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """The rows [A h | W h] of encoder frames [B, T, D], [B, T, J + V]; once per chunk. prompts: [B] or None."""
        return self._projection(encoded, prompts)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The rows [B e_y | log P_ilm] after `labels` [N] int64."""
        output, state = self.lstm.step(labels, state)
        ilm = torch.log_softmax(self._ilm_output(output), dim=-1)  # [N, V]
        return Prediction(torch.cat([self._blank_table.index_select(0, labels), ilm], dim=1), state)

    def ilm_scores(self, projected_predictions: torch.Tensor, ilm: IlmWeights) -> torch.Tensor | None:
        """beta log P_ilm of all labels, [..., V]; None without weights."""
        if not ilm:
            return None
        _, log_probs = projected_predictions.split(self._widths, dim=-1)
        return ilm.betas.to(self.dtype).unsqueeze(-1) * log_probs

    def score(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: IlmWeights = ()
    ) -> Scores:
        """Scores N pairs by equation 4, with the additional term of equation 5 as `extra`.

        Without weights alpha is 1 and there is no `extra`.
        """
        # 1) split the rows: blank branch [..., J], acoustic scores and log P_ilm [..., V]
        blank_frames, acoustic = projected_frames.split(self._widths, dim=-1)
        blank_predictions, log_probs = projected_predictions.split(self._widths, dim=-1)
        # 2) blank: z, one number per pair, [N, 1]
        hidden = torch.tanh(blank_frames + blank_predictions).flatten(0, -2)
        z = self._blank_output(hidden)
        # 3) which label, if it is one: softmax of acoustic scores and weighted ILM, [N, V]
        logits = acoustic + (ilm.alphas.to(self.dtype).unsqueeze(-1) * log_probs if ilm else log_probs)
        labels = torch.log_softmax(logits.flatten(0, -2), dim=-1)
        # 4) both: log(1 - sigmoid(z)) is logsigmoid(-z), which stays finite
        scores = torch.cat([labels + logsigmoid(-z), logsigmoid(z)], dim=1)
        return Scores(scores, None, self.ilm_scores(projected_predictions, ilm))
