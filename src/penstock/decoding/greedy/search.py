"""GreedySearch: the steps that greedy searches share. They begin a chunk, emit labels and finish the chunk.

A search is a program of steps over a `GreedyWorkspace`; a driver runs it.
"""

from abc import ABC, abstractmethod

import torch

from penstock.decoding.greedy.batched_hyps import BatchedHyps
from penstock.decoding.greedy.state import GreedyStates
from penstock.decoding.greedy.workspace import GreedyWorkspace
from penstock.decoding.tensors.tensor_tree import map_tensors, overwrite
from penstock.decoding.transducer.durations import FrameAdvance
from penstock.decoding.transducer.interface import Prediction, TransducerNetwork
from penstock.graphs.program import Program, run_eagerly
from penstock.kernels.capability import TORCH
from penstock.scoring.fusion import Fusion


class GreedySearch(ABC):
    """Base of the greedy searches; `decode` runs the search eagerly."""

    def __init__(self, network: TransducerNetwork, max_symbols: int | None = None, fusion: Fusion | None = None):
        """max_symbols: labels at one frame before time moves on by one frame; by default as in the checkpoint.

        fusion: language model and boosting; each stream's choices are in its state.
        """
        self.network = network
        self.max_symbols = max_symbols or network.config.max_symbols
        self._fusion = None if fusion is None or fusion.is_empty else fusion
        self._advance = FrameAdvance(network.config, network.device)

    def decode(
        self,
        projected_frames: torch.Tensor,
        lengths: torch.Tensor,
        states: GreedyStates,
        overwrites_states: bool = False,
    ) -> tuple[BatchedHyps, GreedyStates]:
        """Decodes one chunk of B streams.

        projected_frames: [B, T, J] from `project_encoder`; lengths: [B] int64 valid frames, 0 .. T; states: before the
        chunk, not modified unless `overwrites_states`. Returns the labels found and the states after. A stream of
        length 0 keeps its state. Synchronizes once per round of each loop.
        """
        batch, frames, _ = projected_frames.shape
        hyps = BatchedHyps(batch, 2 * frames + 2, projected_frames.device, is_growable=True)
        states = states if overwrites_states else map_tensors(torch.clone, states)
        workspace = GreedyWorkspace(projected_frames, lengths, states, hyps, projected_frames.is_cpu)
        run_eagerly(self.program(workspace))
        return hyps, workspace.states

    def program(self, workspace: GreedyWorkspace) -> Program:
        """The search over the tensors of `workspace`, to which it adds what this search needs."""
        if self._fusion is not None and self.network.kernels == TORCH:
            workspace.allocate_label_scores(self.network.config.vocabulary_size)
        return self._program(workspace)

    @abstractmethod
    def _program(self, workspace: GreedyWorkspace) -> Program: ...

    def _begin(self, workspace: GreedyWorkspace) -> None:
        workspace.hyps.clear()
        torch.sub(workspace.states.next_frame, workspace.states.frames_seen, out=workspace.frame)
        workspace.is_emitting.zero_()
        torch.any(workspace.frame < workspace.lengths, out=workspace.is_searching)

    def _emit(self, workspace: GreedyWorkspace) -> None:
        """Adds the labels found, and advances time and predictor there; all tensors [B]."""
        states, is_label, jump = workspace.states, workspace.is_label, workspace.jump
        # 1) fuse: choose the label anew with external scores
        if self._fusion is not None:
            self._choose_fused_label(self._fusion, workspace)
        # 2) store the labels
        timestamp = states.frames_seen + workspace.frame
        workspace.hyps.add(is_label, workspace.label, timestamp, jump, workspace.score, workspace.rows)
        # 3) advance time by the label's duration, or by one frame after max_symbols labels at the frame
        labels_here = states.labels_at_frame * (timestamp == states.next_frame) + is_label
        advance = is_label & (labels_here >= self.max_symbols)
        if self.network.config.is_tdt:  # else a label's `jump` is 0
            advance = jump * is_label + (advance & (jump == 0))
        workspace.frame += advance
        torch.add(states.frames_seen, workspace.frame, out=states.next_frame)
        torch.mul(labels_here, advance == 0, out=states.labels_at_frame)
        # 4) advance the predictor
        prediction = Prediction(states.projected_predictions, states.predictor_state)
        self.network.replace_(workspace.label, is_label, prediction)
        workspace.is_emitting.zero_()  # until a search step sets it
        torch.any(workspace.frame < workspace.lengths, out=workspace.is_searching)

    def _choose_fused_label(self, fusion: Fusion, workspace: GreedyWorkspace) -> None:
        """Chooses which label it is by the fused scores. That it is a label, not blank, was decided without them.

        External scores depend on the labels so far, not on the frame: they are looked up once per label, and so are the
        internal language model's, which also had a part in that decision. The score kept is that of the network. The
        fused kernel keeps no scores of all labels, so the joint is computed again there, at the one frame of each
        hypothesis.
        """
        states, label = workspace.states, workspace.label
        assert states.fusion, "a search with external scores needs their states"
        transitions = fusion.score_all(states.fusion)  # scores [B, V]
        if workspace.label_scores is None:
            frames = workspace.frames_at(workspace.frame.unsqueeze(1))  # [B, 1, J]
            choice = self.network.choose(frames, states.projected_predictions, transitions.scores, states.ilm)
            label.copy_(choice.label.squeeze(1))
            workspace.score.copy_(choice.score.squeeze(1))
        else:
            own = self.network.ilm_scores(states.projected_predictions, states.ilm)
            external = transitions.scores if own is None else own + transitions.scores
            torch.argmax(workspace.label_scores + external, dim=1, out=label)
            torch.gather(workspace.label_scores, 1, label.unsqueeze(1), out=workspace.score.unsqueeze(1))
        overwrite(states.fusion, workspace.is_label, transitions.follow(label), states.fusion)

    def _finish(self, workspace: GreedyWorkspace) -> None:
        workspace.widen()
        states = workspace.states
        next_frame = states.frames_seen + workspace.frame
        states.labels_at_frame.mul_(next_frame == states.next_frame)
        states.next_frame.copy_(next_frame)
        states.frames_seen.add_(workspace.lengths)
