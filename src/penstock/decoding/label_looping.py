"""Greedy Transducer decoding by label-looping (arXiv 2406.06220, Algorithm 3), for RNN-T and TDT.

The outer loop finds one label for every stream a turn, the inner loop skips blanks. The inner loop looks at a window of
frames at once: with the predictor fixed, which blank leads where is known for each frame, and following the jumps needs
no further network evaluation. The result is that of frame-by-frame search. Knows nothing of streams or of CUDA graphs.
"""

from functools import partial

import torch

from penstock.decoding.greedy_search import GreedySearch
from penstock.decoding.greedy_workspace import IS_EMITTING, IS_SEARCHING, GreedyWorkspace
from penstock.decoding.networks import TransducerNetwork
from penstock.fusion.fusion import Fusion
from penstock.graphs.program import Program, While

DEFAULT_WINDOW_ENCODER_FRAMES = 8


class LabelLooping(GreedySearch):
    """Greedy search, one label for every stream a turn."""

    def __init__(
        self,
        network: TransducerNetwork,
        max_symbols: int | None = None,
        window_encoder_frames: int = DEFAULT_WINDOW_ENCODER_FRAMES,
        fusion: Fusion | None = None,
    ):
        """window_encoder_frames: frames that one turn of the inner loop looks at; does not change the result."""
        super().__init__(network, max_symbols, fusion)
        self._window = window_encoder_frames

    def _program(self, work: GreedyWorkspace) -> Program:
        offsets = torch.arange(min(self._window, work.frames), device=work.lengths.device)
        skip_blanks = While(IS_SEARCHING, (partial(self._search_window, work, offsets),))
        turn = While(IS_EMITTING, (partial(self._emit, work), skip_blanks))
        return Program(work.flags, (partial(self._begin, work), skip_blanks, turn, partial(self._finish, work)))

    def _search_window(self, work: GreedyWorkspace, offsets: torch.Tensor) -> None:
        """One turn of the inner loop: from `work.frame` over at most a window of frames; offsets: 0, 1, ... [W].

        Rows that have their label stand still: searched again, they find it again.
        """
        window = len(offsets)
        frames = work.frame.unsqueeze(1) + offsets  # [B, W]
        choice = self.network.choose(work.rows_at(frames), work.rows.predictor_rows)
        jump = self._advance(choice.duration, choice.is_blank)
        keeps_searching = choice.is_blank & (frames < work.lengths.unsqueeze(1))
        stop = _follow(torch.where(keeps_searching, offsets + jump, offsets), window)  # [B]
        at = stop.clamp(max=window - 1).unsqueeze(1)

        def pick_(place: torch.Tensor, values: torch.Tensor) -> None:
            torch.gather(values, 1, at, out=place.unsqueeze(1))

        pick_(work.jump, jump)
        if work.label_rows is None:
            pick_(work.label, choice.label)
            pick_(work.score, choice.score)
        else:
            of_row = at.unsqueeze(2).expand(-1, -1, choice.labels.shape[2])
            torch.gather(choice.labels, 1, of_row, out=work.label_rows.unsqueeze(1))
        work.frame += stop
        has_frame = work.frame < work.lengths
        torch.logical_and(stop < window, has_frame, out=work.is_label)
        torch.any(work.is_label, out=work.is_emitting)
        torch.any(has_frame & ~work.is_label, out=work.is_searching)


def _follow(successor: torch.Tensor, window: int) -> torch.Tensor:
    """Where the jumps from position 0 end, [B]: the first position that is its own successor, or beyond the window.

    successor: [B, W] int64, at least the position itself. Doubles the length of every jump log2(W) times.
    """
    for _ in range(window.bit_length()):
        further = successor.gather(1, successor.clamp(max=window - 1))
        successor = torch.where(successor < window, further, successor)
    return successor[:, 0]
