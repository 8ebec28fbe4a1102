"""ALSD++: alignment-length-synchronous beam search, for RNN-T and TDT.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.2, after Saon
et al., ICASSP 2020. All unfinished hypotheses of a stream have had the same number of turns, labels and blanks.
A TDT jump comes from the list of durations, and hypotheses are merged only at the same frame. Knows no chunks.
"""

import torch

from penstock.decoding.beam_expansion import Expander, Limits
from penstock.decoding.beam_work import BeamMoves, BeamWork, choose
from penstock.decoding.greedy_search import most_labels
from penstock.decoding.networks import TransducerNetwork


class AlsdSearch:
    """One step: each hypothesis takes a label or a blank, the K best remain."""

    def __init__(self, network: TransducerNetwork, expander: Expander, max_symbols: int):
        """max_symbols: labels at one frame before a blank is forced."""
        self.moves = BeamMoves(network, expander)
        self._expander = expander
        self._max_symbols = max_symbols
        self._config = network.config

    def most_labels(self, frames: int) -> int:
        """Labels that a hypothesis can take at `frames` encoder frames."""
        return most_labels(self._config, frames, self._max_symbols)

    def most_columns(self, frames: int) -> int:
        """Steps that can be taken at `frames` encoder frames.

        A hypothesis with a frame to look at has moved in every step so far. Where labels need not move time, it may
        have taken all that a frame allows and then a blank at each; else every move has moved time on.
        """
        shortest = min(self._config.tdt_durations, default=0)
        return self.most_labels(frames) + (frames if shortest == 0 else 0)

    def look(self, work: BeamWork) -> None:
        """A stream can step where a hypothesis has a frame to look at and, before the end, every other one has too."""
        is_waiting = work.hyps.rows.is_live & ~work.is_unfinished
        may_step = work.is_end | ~is_waiting.any(dim=1)
        torch.logical_and(work.is_unfinished.any(dim=1), may_step, out=work.can_step)

    def step(self, work: BeamWork) -> None:
        """Moves the streams on for which `work.can_step` holds."""
        expands = work.is_unfinished & work.can_step.unsqueeze(1)
        is_forced = expands & (work.hyps.rows.labels_at_frame >= self._max_symbols)
        best = self._expander.rank(self.moves.score(work, is_forced), Limits(work.hyps.beam_size, work.beam_sizes))
        self.moves.follow(work, choose(work, best, expands))
