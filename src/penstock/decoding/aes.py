"""AES++: frame-synchronous beam search with adaptive expansion, for RNN-T and TDT.

Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models", section 2.2, after Kim
et al., IEEE SPL 2020, with prefix search for the longest prefix only. All hypotheses of a stream that stand at its
earliest frame are expanded until they have left it; TDT hypotheses that have jumped ahead wait. Knows no chunks.
"""

import torch

from penstock.decoding.beam_expansion import Expander, Expansions, FusedScores, Limits
from penstock.decoding.beam_hyps import ABSENT, extend_hash
from penstock.decoding.beam_sizes import AesLimits
from penstock.decoding.beam_work import BeamMoves, BeamWork, choose
from penstock.decoding.networks import TransducerNetwork

_BEYOND = torch.iinfo(torch.int64).max


class AesSearch:
    """One step: a turn of every hypothesis at a stream's earliest frame.

    A hypothesis there has had as many turns at the frame as it has labels there, since a blank leaves it. So streams
    need not wait for each other's turns, and one whose hypotheses have all left goes on with its next frame.
    """

    def __init__(self, network: TransducerNetwork, expander: Expander, limits: AesLimits | None = None):
        self.moves = BeamMoves(network, expander)
        self._expander = expander
        self._limits = limits or AesLimits()
        self._blank = network.blank

    def most_labels(self, frames: int) -> int:
        """Labels that a hypothesis can take at `frames` encoder frames."""
        return frames * self._limits.expansions_per_frame

    def most_columns(self, frames: int) -> int:
        """Steps that add a label, at `frames` encoder frames: at the earliest one so many, then a blank is forced."""
        return self.most_labels(frames)

    def look(self, work: BeamWork) -> None:
        """A stream can step where a hypothesis has a frame to look at."""
        torch.any(work.is_unfinished, dim=1, out=work.can_step)

    def step(self, work: BeamWork) -> None:
        """Moves the streams on for which `work.can_step` holds."""
        rows, beam_size = work.hyps.rows, work.hyps.beam_size
        frames = torch.where(work.is_unfinished, rows.next_frames, _BEYOND)
        expands = work.is_unfinished & (frames == frames.amin(dim=1, keepdim=True))
        is_forced = expands & (rows.labels_at_frame >= self._limits.expansions_per_frame)
        scores = self.moves.score(work, is_forced)
        if beam_size > 1:  # of one hypothesis none is another's prefix
            self._search_prefixes(work, scores, expands & (rows.labels_at_frame == 0))
        limits = Limits(beam_size, work.beam_sizes, self._limits.extra_labels, self._limits.margin)
        best = self._expander.rank(scores, limits)
        if beam_size > 1:
            best = self._without_known(work, best)
        self.moves.follow(work, choose(work, best, expands))

    def _without_known(self, work: BeamWork, best: Expansions) -> Expansions:
        """Without the labels that lead to a hypothesis of the beam: the prefix search has counted them there.

        A label that does not move time also leads to one that has left the frame by a blank of one frame since: for
        RNN-T the text alone decides, as in NeMo.
        """
        rows, width = work.hyps.rows, best.labels.shape[1]
        labels, jumps = (field.view(*rows.scores.shape, width) for field in (best.labels, best.jumps))
        hashes = extend_hash(rows.hashes.unsqueeze(2), labels).flatten(1).unsqueeze(2)  # [B, K * W, 1]
        lengths = (rows.lengths.unsqueeze(2) + 1).expand_as(labels).flatten(1).unsqueeze(2)
        arrives = (rows.next_frames.unsqueeze(2) + jumps).flatten(1).unsqueeze(2)
        is_still = (jumps == 0).flatten(1).unsqueeze(2)
        frames = rows.next_frames.unsqueeze(1)  # [B, 1, K]
        is_known = (hashes == rows.hashes.unsqueeze(1)) & (lengths == rows.lengths.unsqueeze(1))
        is_known &= (arrives == frames) | (is_still & (arrives + 1 == frames))
        is_known &= rows.is_live.unsqueeze(1)
        is_known = is_known.any(dim=2).view(best.labels.shape) & (best.labels != self._blank)
        return best._replace(ranking_scores=torch.where(is_known, ABSENT, best.ranking_scores))

    def _search_prefixes(self, work: BeamWork, scores: FusedScores, expands: torch.Tensor) -> None:
        """Adds to each hypothesis the probability of its prefix's step to it, if the beam holds the prefix.

        The prefix (one label shorter) must have its first turn now, and be a duration before the hypothesis.
        """
        rows = work.hyps.rows
        batch, beam_size = expands.shape
        labels = rows.last_labels.clamp(min=0).unsqueeze(1).expand(-1, beam_size, -1)  # [B, prefix, hypothesis]
        frames = rows.next_frames.unsqueeze(1) - rows.next_frames.unsqueeze(2)
        is_prefix = extend_hash(rows.hashes.unsqueeze(2), labels) == rows.hashes.unsqueeze(1)
        is_prefix &= rows.lengths.unsqueeze(2) + 1 == rows.lengths.unsqueeze(1)
        is_prefix &= expands.unsqueeze(2)
        step = self._expander.label_scores(scores, labels.flatten(0, 1))
        step = step + self._expander.duration_scores(scores, frames.flatten(0, 1))
        through = rows.scores.unsqueeze(2) + step.view(batch, beam_size, beam_size)
        through = torch.where(is_prefix & rows.is_live.unsqueeze(1), through, ABSENT).logsumexp(dim=1)
        rows.scores.copy_(torch.where(rows.is_live, torch.logaddexp(rows.scores, through), rows.scores))
