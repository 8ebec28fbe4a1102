"""ALSD++: alignment-length-synchronous beam search, for RNN-T and TDT.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.2, after Saon
et al., ICASSP 2020. All unfinished hypotheses of a stream have had the same number of turns, labels and blanks.
A TDT jump comes from the list of durations, and hypotheses are merged only at the same frame. Knows no chunks.
"""

import torch

from penstock.decoding.beam_expansion import Expander, Expansions, Limits
from penstock.decoding.beam_work import BeamMoves, BeamWork, choose
from penstock.decoding.greedy_search import most_labels
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import flatten_rows, select_rows


class AlsdSearch:
    """One step: each hypothesis takes a label or a blank, the K best remain."""

    columns_per_step = 1

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
        rows = work.hyps.rows
        is_waiting = rows.is_live & (rows.next_frames >= work.end_frames.unsqueeze(1))
        may_step = work.is_end | ~is_waiting.any(dim=1)
        torch.logical_and(work.is_unfinished.any(dim=1), may_step, out=work.can_step)

    def step(self, work: BeamWork) -> None:
        """Moves the streams on for which `work.can_step` holds."""
        expands = work.is_unfinished & work.can_step.unsqueeze(1)
        is_forced = expands & (work.hyps.rows.labels_at_frame >= self._max_symbols)
        beam_size = work.hyps.beam_size
        scores = self.moves.score(work)
        fusion = flatten_rows(work.context.fusion)
        widths = work.beam_sizes.repeat_interleave(beam_size)
        best = self._expander.rank(scores, fusion, Limits(beam_size, widths))
        blanks = _padded(self._expander.blanks(scores, fusion), best.labels.shape[1])
        best = select_rows(is_forced.flatten(), blanks, best)
        self.moves.follow(work, choose(work, best, expands))


def _padded(blanks: Expansions, width: int) -> Expansions:
    """One expansion as `width`, of which the others are impossible."""
    is_first = torch.arange(width, device=blanks.labels.device) == 0
    ranking = torch.where(is_first, blanks.ranking_scores, float("-inf"))
    return Expansions(*(field.expand_as(ranking) for field in blanks._replace(ranking_scores=ranking)))
