"""ALSD++: alignment-length-synchronous beam search, for RNN-T and TDT.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.2, after Saon
et al., ICASSP 2020. All unfinished hypotheses of a stream have taken the same number of steps, labels and blanks.
Unlike there, TDT jumps come from the list of durations, and hypotheses are merged only at the same frame.
"""

import torch

from penstock.decoding.beam.expansion import Expander, Limits
from penstock.decoding.beam.scratch import BeamScratch, TransducerOperations
from penstock.decoding.transducer.interface import TransducerNetwork, max_labels


class AlsdSearch:
    """One step: each hypothesis is extended by a label or a blank, and the K best remain."""

    def __init__(self, network: TransducerNetwork, expander: Expander, max_symbols: int):
        """max_symbols: labels at one frame before a blank is forced."""
        self.operations = TransducerOperations(network, expander)
        self._expander = expander
        self._max_symbols = max_symbols
        self._config = network.config

    def max_labels(self, frames: int) -> int:
        """Maximum number of labels of a hypothesis in `frames` encoder frames."""
        return max_labels(self._config, frames, self._max_symbols)

    def max_columns(self, frames: int) -> int:
        """Maximum number of steps in `frames` encoder frames.

        An unfinished hypothesis has moved in every step so far. If labels need not move time, these may be all the
        labels that each frame allows and then its blank; else every step has moved time on.
        """
        shortest = min(self._config.tdt_durations, default=0)
        return self.max_labels(frames) + (frames if shortest == 0 else 0)

    def mark_can_step(self, scratch: BeamScratch) -> None:
        """Sets `can_step`: some hypothesis is unfinished and, before the segment's end, every live one is."""
        is_waiting = scratch.hyps.beam.is_live & ~scratch.is_unfinished
        may_step = scratch.is_end | ~is_waiting.any(dim=1)
        torch.logical_and(scratch.is_unfinished.any(dim=1), may_step, out=scratch.can_step)

    def step(self, scratch: BeamScratch) -> None:
        """Takes one step of the streams where `scratch.can_step` holds."""
        # 1) score: after max_symbols labels at a frame a blank is forced
        expands = scratch.is_unfinished & scratch.can_step.unsqueeze(1)  # [B, K]
        is_forced = expands & (scratch.hyps.beam.labels_at_frame >= self._max_symbols)
        scores = self.operations.score(scratch, is_forced)
        # 2) expand
        best = self._expander.rank(scores, Limits(scratch.hyps.beam_size, scratch.beam_sizes))
        # 3) prune and merge
        self.operations.extend(scratch, best, expands)
