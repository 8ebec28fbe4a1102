"""Frame-synchronous beam search over a CTC head's log-probabilities.

Prefix search (Graves and Jaitly, ICML 2014; Hannun et al., arXiv 1408.2873) on fixed tensors as in FlexCTC (arXiv
2508.07315): a hypothesis is a label prefix and the label of its last frame, blank included. So a prefix occurs at most
twice in a beam, with and without a blank after it, and only after the blank can its last label follow once more.
"""

import torch

from penstock.decoding.beam.expansion import Expansions
from penstock.decoding.beam.hyps import KEEP
from penstock.decoding.beam.scratch import BeamOperations, BeamScratch
from penstock.decoding.ctc import CtcHead
from penstock.decoding.tensors.tensor_tree import flatten
from penstock.scoring.fusion import Fusion


class CtcSearch:
    """One step: every hypothesis of a stream moves on by the same frame, by a label, a repetition or a blank."""

    def __init__(self, head: CtcHead, fusion: Fusion, label_bonus: float = 0.0):
        """label_bonus: as in `Fusion.score_all`."""
        self._label_bonus = label_bonus
        self._operations = BeamOperations(head, fusion)
        self._fusion = fusion
        self._blank = head.blank

    def max_labels(self, frames: int) -> int:
        """Maximum number of labels of a hypothesis in `frames` encoder frames."""
        return frames

    def max_columns(self, frames: int) -> int:
        """Maximum number of steps in `frames` encoder frames."""
        return frames

    def step(self, scratch: BeamScratch, frame: int) -> None:
        """Takes the step of the chunk's frame number `frame` in the streams that have it."""
        hyps = scratch.hyps
        log_probs = scratch.projected_frames[:, frame]  # [B, V + 1]
        width = min(hyps.beam_size, self._blank + 1)
        # 1) the best labels of each hypothesis, [B, K, W]; without external scores they are the same for all
        if self._fusion.is_empty:
            best, labels = (t.unsqueeze(1).expand(-1, hyps.beam_size, -1) for t in log_probs.topk(width, dim=1))
            acoustic, external = best, None
        else:
            external = self._external_scores(scratch)
            best, labels = (log_probs.unsqueeze(1) + external).topk(width, dim=2)
            external = external.gather(2, labels)
            acoustic = log_probs.unsqueeze(1).expand(-1, hyps.beam_size, -1).gather(2, labels)
        # 2) a repetition changes nothing but the score
        is_repeated = (labels == hyps.beam.last_labels.unsqueeze(2)) & (labels != self._blank)
        labels = torch.where(is_repeated, KEEP, labels)
        # 3) prune and merge
        expansions = Expansions(labels, torch.ones_like(labels), best, acoustic, external)
        self._operations.extend(scratch, flatten(expansions), scratch.is_unfinished)

    def _external_scores(self, scratch: BeamScratch) -> torch.Tensor:
        """Language model and boosting of each label, [B, K, V + 1]; 0 for blank and for a repetition."""
        beam, states = scratch.hyps.beam, flatten(scratch.context.fusion)
        scores = self._fusion.score_all(states, self._label_bonus).scores
        scores = torch.nn.functional.pad(scores, (0, 1)).unflatten(0, beam.scores.shape)
        # If a hypothesis has no last label, the blank's 0 is overwritten.
        last = torch.where(beam.last_labels == KEEP, self._blank, beam.last_labels)
        return scores.scatter(2, last.unsqueeze(2), 0.0)
