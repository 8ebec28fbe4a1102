"""The interface of a transducer's predictor and joint to searches: batched functions over hypotheses.

Searches do not know which kind of transducer they search with (`networks` opens the right one). Predictor states are
opaque to them: tuples of tensors [N, ...]. `FrameAdvance` is the only difference between RNN-T and TDT.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import copy_to_device, overwrite
from penstock.decoding.transducer.layers import Lstm
from penstock.errors import CheckpointError
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair, TransducerConfig
from penstock.runtime import prepare_device

PredictorState = tuple[torch.Tensor, ...]


class IlmRows(NamedTuple):
    """The weights of the internal language model that each of N hypotheses' stream chose (`IlmPair`)."""

    alphas: torch.Tensor
    """[N] float32"""
    betas: torch.Tensor
    """[N] float32"""


IlmWeights = IlmRows | tuple[()]
"""Empty for a network without an internal language model."""


class Scores(NamedTuple):
    """Joint output of N pairs of frame and prediction. V labels without blank, D durations."""

    log_probs: torch.Tensor
    """[N, V + 1] log-probabilities, blank last."""
    durations: torch.Tensor | None
    """[N, D] log-probabilities of the durations, or None for RNN-T."""
    extra: torch.Tensor | None = None
    """[..., V] of the predictions' shape, added to the labels in every comparison: it does not depend on the frame, and
    is no part of a label's log-probability. None: nothing."""

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
    """[N, J], projected into the joint; J + V values of a factorized transducer."""
    state: PredictorState
    """Tensors [N, ...]."""


def head_of(checkpoint: Checkpoint) -> TransducerConfig:
    """The configuration of the checkpoint's transducer; CheckpointError if it has none."""
    if checkpoint.config.transducer is None:
        raise CheckpointError(f"{checkpoint.directory}: has no transducer, only {checkpoint.config.head_name}")
    return checkpoint.config.transducer


class TransducerNetwork(ABC):
    """Predictor and joint. `choose` and `replace_` are the inner loop of greedy search."""

    kernels: str = TORCH
    """Implementation of `choose` and `replace_`: "torch" or "fused"."""
    lstm: Lstm

    def __init__(self, config: TransducerConfig, device: torch.device | str, dtype: torch.dtype):
        self.config = config
        self.device, self.dtype = prepare_device(device), dtype
        self.frame_width = config.row_width
        """Width of `project_encoder`'s output."""

    @property
    def blank(self) -> int:
        """The blank label; also the predictor's input before the first label."""
        return self.config.vocabulary_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each predictor state tensor without the batch axis."""
        shape = (self.config.predictor_layers, self.config.predictor_hidden)
        return (shape, shape)

    @abstractmethod
    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Projects encoder frames [B, T, D] for the joint, [B, T, frame_width]; once per chunk.

        prompts: [B] int64, of a model with language prompts; else not used.
        """

    def start(self, count: int) -> Prediction:
        """The prediction of `count` hypotheses before their first label."""
        zeros = tuple(torch.zeros(count, *shape, device=self.device, dtype=self.dtype) for shape in self.state_shapes)
        return self.predict(torch.full((count,), self.blank, device=self.device), zeros)

    @abstractmethod
    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64."""

    def replace_(self, labels: torch.Tensor, is_label: torch.Tensor, prediction: Prediction) -> None:
        """Overwrites `prediction` by the prediction after `labels` [N] int64 where is_label [N] bool holds.

        Where it does not, any valid label may stand in `labels`.
        """
        overwrite(prediction, is_label, self.predict(labels, prediction.state), prediction)

    def ilm_weights(self, pairs: Sequence[IlmPair]) -> IlmWeights:
        """The weights [N] of the N streams that chose `pairs`; empty without an internal language model."""
        if not self.config.is_factorized:
            return ()
        weights = copy_to_device(pairs, torch.float32, self.device).view(-1, len(IlmPair._fields))
        return IlmRows(*weights.t().contiguous().unbind())

    def ilm_scores(self, projected_predictions: torch.Tensor, ilm: IlmWeights) -> torch.Tensor | None:
        """Returns `Scores.extra` after projected_predictions [..., J], for ilm with fields [...]: [..., V], or None."""
        return None

    @abstractmethod
    def score(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: IlmWeights = ()
    ) -> Scores:
        """Scores N pairs: projected_frames [N, J], projected_predictions [N, J], ilm with fields [N].

        Each may have more axes instead of N, and be broadcastable.
        """

    def choose(
        self,
        projected_frames: torch.Tensor,
        projected_predictions: torch.Tensor,
        extra: torch.Tensor | None = None,
        ilm: IlmWeights = (),
    ) -> Choice:
        """Makes the greedy choice at projected_frames [B, W, J], each with its projected_predictions [B, J].

        extra: [B, V] float32, added to the ranking of labels only: not to blank's, nor to the score returned. ilm:
        fields [B]. NaN input gives arbitrary choices, but always valid indices.
        """
        # 1) score every pair of frame and prediction: [B * W, V + 1], then [B, W, V + 1]
        ilm = IlmRows(ilm.alphas.unsqueeze(1), ilm.betas.unsqueeze(1)) if ilm else ilm
        scores = self.score(projected_frames, projected_predictions.unsqueeze(1), ilm)
        shape = projected_frames.shape[:2]
        log_probs = scores.log_probs.view(*shape, scores.log_probs.shape[1])
        blank, labels = log_probs[..., -1], log_probs[..., :-1]
        # 2) blank or label: decided by the network alone, [B, W]
        ranking = labels if scores.extra is None else labels + scores.extra
        score, label = ranking.max(dim=-1)
        is_blank = blank > score
        # 3) which label: with the external scores, which do not depend on the frame
        if extra is not None:
            label = (ranking + extra.unsqueeze(1)).argmax(dim=-1)
        if extra is not None or scores.extra is not None:
            score = labels.gather(-1, label.unsqueeze(-1)).squeeze(-1)
        # 4) TDT: the duration, of labels and blanks alike
        duration = None if scores.durations is None else scores.durations.argmax(dim=-1).view(shape)
        return Choice(is_blank, label, score, duration, labels)


class FrameAdvance:
    """RNN-T is TDT with the durations blank 1 and label 0. A TDT blank of duration 0 also moves one frame."""

    def __init__(self, config: TransducerConfig, device: torch.device | str = "cpu"):
        self._durations = (
            torch.tensor(config.tdt_durations, dtype=torch.int64, device=device) if config.is_tdt else None
        )

    def __call__(self, duration: torch.Tensor | None, is_blank: torch.Tensor) -> torch.Tensor:
        """Returns the encoder frames [...] int64 that each choice moves on; is_blank: [...] bool.

        duration: [...] int64, the best duration's index into the model's list; ignored for RNN-T.
        """
        if self._durations is None:
            return is_blank.long()
        assert duration is not None
        frames = self._durations.index_select(0, duration.flatten()).view_as(is_blank)
        return torch.maximum(frames, is_blank.long())


def max_labels(config: TransducerConfig, frames: int, max_symbols: int) -> int:
    """Returns the maximum number of labels of a hypothesis in `frames` encoder frames.

    A frame holds at most `max_symbols` labels. If every duration is at least d > 0, d frames have at most one.
    """
    shortest = min(config.tdt_durations, default=0)
    return frames * max_symbols if shortest == 0 else -(-frames // shortest)
