"""AES++: frame-synchronous beam search with adaptive expansion, for RNN-T and TDT.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.2, after Kim
et al., IEEE SPL 2020, with prefix search for the longest prefix only. The hypotheses at a stream's earliest frame are
expanded until all have left it by a blank or a TDT jump; those at later frames stay as they are meanwhile.
"""

import torch

from penstock.decoding.beam.expansion import Expander, Expansions, FusedScores, Limits
from penstock.decoding.beam.hyps import ABSENT, extend_hash
from penstock.decoding.beam.scratch import BeamScratch, TransducerOperations
from penstock.decoding.sizes import AesLimits
from penstock.decoding.transducer.interface import TransducerNetwork

_BEYOND = torch.iinfo(torch.int64).max


class AesSearch:
    """One step: one expansion of every hypothesis at its stream's earliest frame.

    A hypothesis there has been expanded as often at the frame as it has labels there, since a blank leaves the frame.
    So a step needs no counter, streams in a batch may be at different expansion steps of their frames, and a stream
    that has left its frame goes on with the next one.
    """

    def __init__(self, network: TransducerNetwork, expander: Expander, limits: AesLimits | None = None):
        self.operations = TransducerOperations(network, expander)
        self._expander = expander
        self._limits = limits or AesLimits()
        self._blank = network.blank

    def max_labels(self, frames: int) -> int:
        """Maximum number of labels of a hypothesis in `frames` encoder frames."""
        return frames * self._limits.expansions_per_frame

    def max_columns(self, frames: int) -> int:
        """Maximum number of steps that add a label in `frames` encoder frames: then a blank is forced at each."""
        return self.max_labels(frames)

    def mark_can_step(self, scratch: BeamScratch) -> None:
        """Sets `can_step`: some hypothesis is unfinished."""
        torch.any(scratch.is_unfinished, dim=1, out=scratch.can_step)

    def step(self, scratch: BeamScratch) -> None:
        """Takes one step of the streams where `scratch.can_step` holds."""
        beam, beam_size = scratch.hyps.beam, scratch.hyps.beam_size
        # 1) select the hypotheses at the earliest frame: [B, K]
        frames = torch.where(scratch.is_unfinished, beam.next_frames, _BEYOND)
        expands = scratch.is_unfinished & (frames == frames.amin(dim=1, keepdim=True))
        # 2) score: after all expansions of the frame a blank is forced
        is_forced = expands & (beam.labels_at_frame >= self._limits.expansions_per_frame)
        scores = self.operations.score(scratch, is_forced)
        # 3) prefix search, before a hypothesis's first expansion at the frame
        if beam_size > 1:
            self._search_prefixes(scratch, scores, expands & (beam.labels_at_frame == 0))
        # 4) expand, without the labels that the prefix search has counted
        limits = Limits(beam_size, scratch.beam_sizes, self._limits.extra_labels, self._limits.margin)
        best = self._expander.rank(scores, limits)
        if beam_size > 1:
            best = self._without_known(scratch, best)
        # 5) prune and merge
        self.operations.extend(scratch, best, expands)

    def _without_known(self, scratch: BeamScratch, best: Expansions) -> Expansions:
        """Removes the expansions that lead to a hypothesis of the beam: the prefix search has counted them there.

        A label that does not move time also counts as leading to a hypothesis one frame later, which has left the frame
        by a blank since: for RNN-T the text alone decides, as in NeMo.
        """
        beam, width = scratch.hyps.beam, best.labels.shape[1]
        labels, jumps = (field.view(*beam.scores.shape, width) for field in (best.labels, best.jumps))
        # 1) where each expansion leads: [B, K * W, 1]
        hashes = extend_hash(beam.hashes.unsqueeze(2), labels).flatten(1).unsqueeze(2)
        lengths = (beam.lengths.unsqueeze(2) + 1).expand_as(labels).flatten(1).unsqueeze(2)
        arrives = (beam.next_frames.unsqueeze(2) + jumps).flatten(1).unsqueeze(2)
        is_still = (jumps == 0).flatten(1).unsqueeze(2)
        # 2) compare with the hypotheses of the beam: [B, K * W, K]
        frames = beam.next_frames.unsqueeze(1)
        is_known = (hashes == beam.hashes.unsqueeze(1)) & (lengths == beam.lengths.unsqueeze(1))
        is_known &= (arrives == frames) | (is_still & (arrives + 1 == frames))
        is_known &= beam.is_live.unsqueeze(1)
        # 3) remove the labels that lead to one: [B * K, W]
        is_known = is_known.any(dim=2).view(best.labels.shape) & (best.labels != self._blank)
        return best._replace(ranking_scores=torch.where(is_known, ABSENT, best.ranking_scores))

    def _search_prefixes(self, scratch: BeamScratch, scores: FusedScores, expands: torch.Tensor) -> None:
        """Adds to each hypothesis the probability of the step to it from its prefix, if the beam holds the prefix.

        The prefix (one label shorter) must be at its first expansion of the frame, `expands` [B, K] bool, and earlier
        than the hypothesis by a duration.
        """
        beam = scratch.hyps.beam
        batch, beam_size = expands.shape
        # 1) find the prefixes: [B, prefix, hypothesis]
        labels = beam.last_labels.clamp(min=0).unsqueeze(1).expand(-1, beam_size, -1)
        is_prefix = extend_hash(beam.hashes.unsqueeze(2), labels) == beam.hashes.unsqueeze(1)
        is_prefix &= beam.lengths.unsqueeze(2) + 1 == beam.lengths.unsqueeze(1)
        is_prefix &= expands.unsqueeze(2)
        # 2) score the step: the hypothesis's last label and the duration between the two
        frames = beam.next_frames.unsqueeze(1) - beam.next_frames.unsqueeze(2)
        step = scores.ranking.gather(1, labels.flatten(0, 1))
        step = step + self._expander.duration_scores(scores, frames.flatten(0, 1))
        # 3) add the probabilities of all paths through a prefix: [B, K]
        through = beam.scores.unsqueeze(2) + step.view(batch, beam_size, beam_size)
        through = torch.where(is_prefix & beam.is_live.unsqueeze(1), through, ABSENT).logsumexp(dim=1)
        beam.scores.copy_(torch.where(beam.is_live, torch.logaddexp(beam.scores, through), beam.scores))
