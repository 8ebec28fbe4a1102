"""Baselines of label-looping: frame-by-frame search, and a network that projects for each pair of frame and label.

`FrameLooping` is arXiv 2406.03791, Algorithm 1, for RNN-T and TDT. All streams of a batch are at the same frame. A
stream that emits a label stalls the others, and predictor and joint run for all streams in every step. A TDT stream is
idle until the batch reaches the frame it jumped to, so the result is exact. The two loops of the paper are one: time
advances in the step in which no stream emits a label. State and labels are those of label-looping.
"""

from functools import partial

import torch

from penstock.decoding.greedy.memory import IS_SEARCHING, GreedyWorkspace
from penstock.decoding.greedy.search import GreedySearch
from penstock.decoding.transducer.interface import IlmWeights, Prediction, PredictorState, Scores
from penstock.decoding.transducer.networks import StandardNetwork
from penstock.graphs.program import Program, While
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint


class FrameLooping(GreedySearch):
    """Greedy search, one frame after another for all streams together."""

    def _program(self, workspace: GreedyWorkspace) -> Program:
        time = torch.zeros(1, dtype=torch.int64, device=workspace.lengths.device)
        emit = partial(self._emit, workspace)
        loop = While(
            IS_SEARCHING,
            (partial(self._search_frame, workspace, time), emit, partial(self._move_on, workspace, time)),
        )
        begin = partial(self._begin, workspace)
        return Program(workspace.flags, (begin, time.zero_, loop, partial(self._finish, workspace)))

    def _search_frame(self, workspace: GreedyWorkspace, time: torch.Tensor) -> None:
        """Scores the common frame `time` [1] int64; streams with blank there advance."""
        # 1) score the common frame: [B, 1, J]
        is_active = _is_active(workspace, time)
        frames = workspace.projected_frames.index_select(1, time.clamp(max=workspace.max_frames - 1))
        states = workspace.states
        choice = self.network.choose(frames, states.projected_predictions, ilm=states.ilm)
        # 2) store the choice: [B]
        is_blank = choice.is_blank.squeeze(1)
        workspace.label.copy_(choice.label.squeeze(1))
        workspace.score.copy_(choice.score.squeeze(1))
        workspace.jump.copy_(self._advance(choice.duration, choice.is_blank).squeeze(1))
        if workspace.label_scores is not None:
            workspace.label_scores.copy_(choice.labels.squeeze(1))
        # 3) advance where it is blank
        torch.logical_and(is_active, ~is_blank, out=workspace.is_label)
        workspace.frame += workspace.jump * (is_active & is_blank)

    def _move_on(self, workspace: GreedyWorkspace, time: torch.Tensor) -> None:
        time += ~_is_active(workspace, time).any()
        torch.any(time < workspace.lengths, out=workspace.is_searching)


def _is_active(workspace: GreedyWorkspace, time: torch.Tensor) -> torch.Tensor:
    """[B] bool, True for streams at the frame `time` [1]."""
    return (workspace.frame == time) & (time < workspace.lengths)


class UnprojectedNetwork(StandardNetwork):
    """Computes both projections anew for each pair that is scored: the baseline of precomputed projections.

    Its "projected" frames are encoder frames [B, T, D], its "projected" predictions the LSTM's output [N, H].
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        super().__init__(checkpoint, device, dtype, TORCH)
        self.frame_width = checkpoint.tensors("joint.encoder.weight")["joint.encoder.weight"].shape[1]

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Does not project; for models without language prompts."""
        return encoded.to(self.dtype)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """Runs the LSTM without the projection."""
        return Prediction(*self._lstm.step(labels, state))

    def score(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: IlmWeights = ()
    ) -> Scores:
        """Projects both, then scores."""
        frames = self._projection(projected_frames.flatten(0, -2).unsqueeze(0))[0]
        predictions = self._predictor_projection(projected_predictions.flatten(0, -2))
        return super().score(
            frames.unflatten(0, projected_frames.shape[:-1]),
            predictions.unflatten(0, projected_predictions.shape[:-1]),
        )
