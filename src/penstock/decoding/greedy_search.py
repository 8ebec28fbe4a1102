"""What the greedy searches have in common: the steps that begin a chunk, emit labels and finish the chunk.

A search is a program of steps over a `GreedyWorkspace`; who runs the program is not its business.
"""

from abc import ABC, abstractmethod

import torch

from penstock.config import TransducerConfig
from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.frame_advance import FrameAdvance
from penstock.decoding.greedy_state import GreedyRows
from penstock.decoding.greedy_workspace import GreedyWorkspace
from penstock.decoding.networks import Prediction, TransducerNetwork, replace_rows_
from penstock.decoding.rows import map_rows
from penstock.fusion.fusion import Fusion
from penstock.graphs.program import Program, run_eagerly
from penstock.kernels.capability import TORCH


class GreedySearch(ABC):
    """Greedy search of one algorithm; `decode` drives it eagerly."""

    def __init__(self, network: TransducerNetwork, max_symbols: int | None = None, fusion: Fusion | None = None):
        """max_symbols: labels at one frame before time is forced on by one; None: as the checkpoint says.

        fusion: language model and boosting; what each stream chose is in its rows.
        """
        self.network = network
        self.max_symbols = max_symbols or network.config.max_symbols
        self._fusion = None if fusion is None or fusion.is_empty else fusion
        self._advance = FrameAdvance(network.config, network.device)

    @torch.inference_mode()
    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, rows: GreedyRows
    ) -> tuple[BatchedHyps, GreedyRows]:
        """Decodes one chunk of B streams.

        frame_rows: [B, T, J] from `project_encoder`; lengths: [B] int64 valid frames, 0 .. T; rows: state before.
        Returns the labels found and the state after. A row of length 0 keeps its state. Synchronises once a turn.
        """
        hyps = BatchedHyps(len(lengths), 2 * frame_rows.shape[1] + 2, frame_rows.device, is_growable=True)
        workspace = GreedyWorkspace(frame_rows, lengths, map_rows(torch.clone, rows), hyps)
        run_eagerly(self.program(workspace))
        return hyps, workspace.rows

    def program(self, work: GreedyWorkspace) -> Program:
        """The search over the tensors of `work`; adds to it what this search needs."""
        if self._fusion is not None and self.network.kernels == TORCH:
            work.keep_label_rows(self.network.config.vocabulary_size)
        return self._program(work)

    @abstractmethod
    def _program(self, work: GreedyWorkspace) -> Program: ...

    def _begin(self, work: GreedyWorkspace) -> None:
        work.hyps.clear()
        torch.sub(work.rows.next_frame, work.rows.frames_seen, out=work.frame)
        work.time.zero_()
        work.is_emitting.zero_()
        torch.any(work.frame < work.lengths, out=work.is_searching)

    def _emit(self, work: GreedyWorkspace) -> None:
        """Adds the labels found, moves time and the predictor on where there is one."""
        rows = work.rows
        if self._fusion is not None:
            self._choose_again(work)
        timestamp = rows.frames_seen + work.frame
        work.hyps.add(work.is_label, work.label, timestamp, work.jump, work.score)
        labels_here = rows.labels_at_frame * (timestamp == rows.next_frame) + work.is_label
        is_forced = work.is_label & (work.jump == 0) & (labels_here >= self.max_symbols)
        moved = work.jump * work.is_label + is_forced
        work.frame += moved
        torch.add(rows.frames_seen, work.frame, out=rows.next_frame)
        torch.mul(labels_here, moved == 0, out=rows.labels_at_frame)
        self.network.replace_(work.label, work.is_label, Prediction(rows.predictor_rows, rows.predictor_state))
        work.is_emitting.zero_()  # until a search says otherwise
        torch.any(work.frame < work.lengths, out=work.is_searching)

    def _choose_again(self, work: GreedyWorkspace) -> None:
        """Lets fusion say which label it is; that it is a label, and not blank, was decided without it.

        The scores of fusion depend on the labels so far, not on the frame: they are looked up once a label. The score
        kept is still that of the network. Kernels keep no scores of all labels, so there the joint is asked again,
        about the one frame of each row.
        """
        look = self._fusion.look(work.rows.fusion)
        if work.label_rows is None:
            choice = self.network.choose(work.rows_at(work.frame.unsqueeze(1)), work.rows.predictor_rows, look.scores)
            work.label.copy_(choice.label.squeeze(1))
            work.score.copy_(choice.score.squeeze(1))
        else:
            torch.argmax(work.label_rows + look.scores, dim=1, out=work.label)
            torch.gather(work.label_rows, 1, work.label.unsqueeze(1), out=work.score.unsqueeze(1))
        for old, new in zip(work.rows.fusion, look.follow(work.label), strict=True):
            if old is not new:  # what no label changes
                replace_rows_(old, work.is_label, new)

    def _finish(self, work: GreedyWorkspace) -> None:
        rows = work.rows
        next_frame = rows.frames_seen + work.frame
        rows.labels_at_frame.mul_(next_frame == rows.next_frame)
        rows.next_frame.copy_(next_frame)
        rows.frames_seen.add_(work.lengths)


def most_labels(config: TransducerConfig, frames: int, max_symbols: int) -> int:
    """The most labels that greedy search can find in `frames` encoder frames of one stream.

    At a frame there are at most `max_symbols` labels, and one if every label moves time on. So it is at most one in d
    frames where every duration is at least d.
    """
    shortest = min(config.tdt_durations, default=0)
    return frames * max_symbols if shortest == 0 else -(-frames // shortest)
