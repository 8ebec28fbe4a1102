"""Greedy Transducer decoding by label-looping (arXiv 2406.06220, Algorithm 3), for RNN-T and TDT.

Each round of the outer loop emits at most one label per stream; the inner loop skips blanks. The inner loop scores a
window of frames at once: while the predictor does not change, the jump from each blank frame is known, and following
the jumps needs no further network evaluation. The result is that of frame-by-frame search.
"""

from functools import partial

import torch

from penstock.decoding.greedy.search import GreedySearch
from penstock.decoding.greedy.workspace import IS_EMITTING, IS_SEARCHING, GreedyWorkspace
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.graphs.program import Program, While
from penstock.scoring.fusion import Fusion

_WINDOW_ENCODER_FRAMES = 8
_LARGE_VOCABULARY, _WINDOW_OF_LARGE_VOCABULARY = 4096, 4
"""On the CPU. A frame after the label found was scored in vain, which takes longer the larger the joint is."""
_LEAST_LEFT_OUT = 8
"""Leaving out fewer takes longer than scoring them in vain."""


class LabelLooping(GreedySearch):
    """Label-looping greedy search."""

    def __init__(
        self,
        network: TransducerNetwork,
        max_symbols: int | None = None,
        window_encoder_frames: int | None = None,
        fusion: Fusion | None = None,
    ):
        """window_encoder_frames: frames that one round of the inner loop scores; does not change the result.

        By default 8, and 4 for large vocabularies on the CPU.
        """
        super().__init__(network, max_symbols, fusion)
        self.window_encoder_frames = window_encoder_frames or _default_window(network)

    def _program(self, workspace: GreedyWorkspace) -> Program:
        offsets = torch.arange(min(self.window_encoder_frames, workspace.max_frames), device=workspace.lengths.device)
        skip_blanks = While(IS_SEARCHING, (partial(self._search_window, workspace, offsets),))
        can_leave_out = workspace.is_narrowable and workspace.lengths.shape[0] > _LEAST_LEFT_OUT
        leave_out = (partial(_leave_out, workspace),) if can_leave_out else ()
        emit_labels = While(IS_EMITTING, (*leave_out, partial(self._emit, workspace), skip_blanks))
        begin, finish = partial(self._begin, workspace), partial(self._finish, workspace)
        return Program(workspace.flags, (begin, skip_blanks, emit_labels, finish))

    def _search_window(self, workspace: GreedyWorkspace, offsets: torch.Tensor) -> None:
        """One round of the inner loop, from `workspace.frame` over a window; offsets: 0, 1, ... [W] int64.

        A chunk that is no longer than a window is the window, as it lies in memory, and takes one round. Hypotheses
        that have found their label find it again at the same frame.
        """
        window, states = len(offsets), workspace.states
        is_whole_chunk = window == workspace.max_frames
        # 1) score the window: [B, W]
        first = workspace.frame.unsqueeze(1)
        frames = offsets if is_whole_chunk else first + offsets
        projected = workspace.projected_frames if is_whole_chunk else workspace.frames_at(frames)
        choice = self.network.choose(projected, states.projected_predictions, ilm=states.ilm)
        # 2) follow the blanks' jumps to the first label, or out of the window or chunk: [B], a place in the window
        keeps_searching = choice.is_blank & (frames < workspace.lengths.unsqueeze(1))
        jump = None
        if self.network.config.is_tdt:
            jump = self._advance(choice.duration, choice.is_blank)
            successor = torch.where(keeps_searching, offsets + jump, offsets)
            stop = _follow(successor, first if is_whole_chunk else torch.zeros_like(first))
        else:  # each blank's jump is one frame, and a label's 0, as `workspace.jump` is
            if is_whole_chunk:
                keeps_searching |= offsets < first
            stop = keeps_searching.cumprod(1).sum(1)
        # 3) store the choice there
        at = stop.clamp(max=window - 1).unsqueeze(1)

        def pick_(place: torch.Tensor, values: torch.Tensor) -> None:
            torch.gather(values, 1, at, out=place.unsqueeze(1))

        if jump is not None:
            pick_(workspace.jump, jump)
        if workspace.label_scores is None:
            pick_(workspace.label, choice.label)
            pick_(workspace.score, choice.score)
        else:
            assert choice.labels is not None
            at_label = at.unsqueeze(2).expand(-1, -1, choice.labels.shape[2])
            torch.gather(choice.labels, 1, at_label, out=workspace.label_scores.unsqueeze(1))
        # 4) advance time and set the flags
        if is_whole_chunk:
            workspace.frame.copy_(stop)
            torch.lt(stop, workspace.lengths, out=workspace.is_label)
            workspace.is_searching.zero_()
        else:
            workspace.frame += stop
            has_frame = workspace.frame < workspace.lengths
            torch.logical_and(stop < window, has_frame, out=workspace.is_label)
            torch.any(has_frame > workspace.is_label, out=workspace.is_searching)
        torch.any(workspace.is_label, out=workspace.is_emitting)


def _leave_out(workspace: GreedyWorkspace) -> None:
    """Goes on without the hypotheses that have found no label, so are through with the chunk, if they are enough."""
    kept = workspace.is_label.nonzero().squeeze(1)
    left_out = len(workspace.is_label) - len(kept)
    if left_out >= max(_LEAST_LEFT_OUT, len(kept) // 3):
        workspace.narrow(kept)


def _default_window(network: TransducerNetwork) -> int:
    is_large = network.config.vocabulary_size > _LARGE_VOCABULARY
    return _WINDOW_OF_LARGE_VOCABULARY if is_large and network.device.type == "cpu" else _WINDOW_ENCODER_FRAMES


def _follow(successor: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Returns where the jumps from `first` [B, 1] int64 end, [B]: at a fixed point, or beyond the window.

    successor: [B, W] int64, not below the position itself. Doubles the length of every jump log2(W) times.
    """
    window = successor.shape[1]
    for _ in range(window.bit_length()):
        further = successor.gather(1, successor.clamp(max=window - 1))
        successor = torch.where(successor < window, further, successor)
    end = successor.gather(1, first.clamp(max=window - 1))
    return torch.where(first < window, end, first).squeeze(1)
