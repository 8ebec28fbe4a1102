"""Greedy Transducer decoding frame by frame (arXiv 2406.03791, Algorithm 1), for RNN-T and TDT: the baseline.

All streams of a batch look at the same frame; one that finds a label makes the others wait, and predictor and joint run
for everybody each time. For TDT a stream waits until the frames come to the one it jumped to, so the result is exact.
The two loops of the paper are one here: time moves on in the same step once nobody has more to say at a frame. Same
state, same labels as label-looping; of use to tests and benchmarks.
"""

from functools import partial

import torch

from penstock.decoding.greedy_search import GreedySearch
from penstock.decoding.greedy_workspace import IS_SEARCHING, GreedyWorkspace
from penstock.graphs.program import Program, While


class FrameLooping(GreedySearch):
    """Greedy search, one frame after another for all streams together."""

    def _program(self, work: GreedyWorkspace) -> Program:
        loop = While(
            IS_SEARCHING, (partial(self._search_frame, work), partial(self._emit, work), partial(self._move_on, work))
        )
        return Program(work.flags, (partial(self._begin, work), loop, partial(self._finish, work)))

    def _search_frame(self, work: GreedyWorkspace) -> None:
        """Asks the joint about the frame `work.time`; who finds blank there moves on."""
        is_active = _is_active(work)
        frame_rows = work.frame_rows.index_select(1, work.time.clamp(max=work.frames - 1))
        choice = self.network.choose(frame_rows, work.rows.predictor_rows)
        is_blank = choice.is_blank.squeeze(1)
        work.label.copy_(choice.label.squeeze(1))
        work.score.copy_(choice.score.squeeze(1))
        work.jump.copy_(self._advance(choice.duration, choice.is_blank).squeeze(1))
        if work.label_rows is not None:
            work.label_rows.copy_(choice.labels.squeeze(1))
        torch.logical_and(is_active, ~is_blank, out=work.is_label)
        work.frame += work.jump * (is_active & is_blank)

    def _move_on(self, work: GreedyWorkspace) -> None:
        work.time += ~_is_active(work).any()
        torch.any(work.time < work.lengths, out=work.is_searching)


def _is_active(work: GreedyWorkspace) -> torch.Tensor:
    """[B] bool, True for rows that stand at the frame `work.time`."""
    return (work.frame == work.time) & (work.time < work.lengths)
