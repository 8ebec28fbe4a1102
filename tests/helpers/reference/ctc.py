"""CTC decoding the slow and obvious way: one utterance, frame by frame."""

import itertools
import math
from collections import defaultdict

import torch

from tests.helpers.reference.beam import PlainFusion
from tests.helpers.reference.greedy import Label

Prefix = tuple[int, ...]


def greedy(log_probs: torch.Tensor) -> list[Label]:
    """Collapses the best labels of log_probs [T, V + 1], blank last; a label's score is that of its first frame."""
    blank, found, last = log_probs.shape[1] - 1, [], None
    for frame, row in enumerate(log_probs):
        label = int(row.argmax())
        if label == last and label != blank:
            found[-1] = found[-1]._replace(duration=found[-1].duration + 1)
        elif label != blank:
            found.append(Label(label, frame, 1, float(row[label])))
        last = label
    return found


def exhaustive(log_probs: torch.Tensor) -> dict[Prefix, float]:
    """Log-probability of every label sequence: the sum over all alignments of log_probs [T, V + 1]. For tiny inputs."""
    frames, labels = log_probs.shape
    found: dict[Prefix, list[float]] = defaultdict(list)
    for path in itertools.product(range(labels), repeat=frames):
        collapsed = tuple(label for label, _ in itertools.groupby(path) if label != labels - 1)
        found[collapsed].append(sum(float(log_probs[t, label]) for t, label in enumerate(path)))
    return {prefix: _sum(scores) for prefix, scores in found.items()}


def beam(
    log_probs: torch.Tensor, beam_size: int, fusion: PlainFusion | None = None, combine=None, label_bonus: float = 0.0
) -> list[tuple[Prefix, int, float, float]]:
    """Beam search over log_probs [T, V + 1]: (prefix, last frame's label, score, external part), best first.

    combine: of the scores of equal hypotheses; the sum of their probabilities by default.
    """
    combine, blank = combine or _sum, log_probs.shape[1] - 1
    hypotheses: dict[tuple[Prefix, int], tuple[float, float, int]] = {((), -1): (0.0, 0.0, 0)}
    for row in log_probs.tolist():
        steps = []
        for (prefix, last), (score, external, state) in hypotheses.items():
            for label, log_prob in enumerate(row):
                if label in (blank, last):
                    steps.append((score + log_prob, prefix, label, external, state))
                    continue
                added, after = _extended(fusion, state, label, label_bonus)
                steps.append((score + log_prob + added, (*prefix, label), label, external + added, after))
        best = sorted(steps, key=lambda step: -step[0])[:beam_size]
        grouped = defaultdict(list)
        for score, prefix, label, external, state in best:
            grouped[prefix, label].append((score, external, state))
        hypotheses = {key: (combine([one[0] for one in same]), *same[0][1:]) for key, same in grouped.items()}
    found = [(prefix, last, score, external) for (prefix, last), (score, external, _) in hypotheses.items()]
    return sorted(found, key=lambda one: -one[2])


def _extended(fusion: PlainFusion | None, state: int, label: int, label_bonus: float) -> tuple[float, int]:
    if fusion is None:
        return 0.0, state
    boost = 0.0 if fusion.boost is None else float(fusion.boost[label])
    score = fusion.weight * (float(fusion.scores[state, label]) + label_bonus) + boost
    return score, int(fusion.next_states[state, label])


def _sum(scores: list[float]) -> float:
    highest = max(scores)
    return highest + math.log(sum(math.exp(score - highest) for score in scores))
