"""FactorizedNetwork: a transducer whose blank is decided apart from its labels, which an internal language model (ILM)
scores.

"Effective internal language model training and fusion for factorized transducer model" (docs/factorized.md). A
row is one tensor [J + V]: of an encoder frame h [A h | W h], of a prediction after label y [B e_y | log P_ilm].
"""

import torch
from torch.nn.functional import logsigmoid

from penstock.decoding.transducer.frame_projection import FrameProjection
from penstock.decoding.transducer.interface import (
    IlmWeights,
    Prediction,
    PredictorState,
    Scores,
    TransducerNetwork,
    head_of,
)
from penstock.decoding.transducer.lstm import Lstm
from penstock.errors import SettingError
from penstock.kernels.capability import AUTO, FUSED, TORCH, resolve
from penstock.linear import Linear
from penstock.model.bundle import Checkpoint


class FactorizedNetwork(TransducerNetwork):
    """Blank branch, acoustic branch and internal language model. Always PyTorch: there are no fused kernels for it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: str = AUTO,
    ):
        """kernels: "auto" or "torch"; SettingError for "fused"."""
        super().__init__(head_of(checkpoint), device, dtype)
        if kernels == FUSED:
            reason = f"a {self.config.name} has none; accepted: {AUTO}, {TORCH}"
            raise SettingError(f'kernels "{FUSED}" are not possible: {reason}')
        resolve(kernels, self.device, dtype)
        self.kernels = TORCH
        names = checkpoint.tensors("predictor.", "blank.", "acoustic.")
        tensors = {name: tensor.to(device, dtype) for name, tensor in names.items()}
        self._lstm = Lstm(tensors, self.config.predictor_layers)
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
        output, state = self._lstm.step(labels, state)
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
