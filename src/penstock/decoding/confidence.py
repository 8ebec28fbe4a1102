"""Word confidence from the network's probabilities of the tokens, without language model and boosting."""

import enum
import math
from collections.abc import Sequence


class Aggregation(enum.Enum):
    """Aggregation of the probabilities of a word's tokens; names as in NeMo's confidence methods."""

    MIN = "min"
    """The lowest token probability: one doubtful token makes the word doubtful."""
    MEAN = "mean"
    """The geometric mean, which does not penalize long words."""
    PROD = "prod"
    """The probability of the whole word."""


def token_confidence(acoustic_score: float) -> float:
    """0 .. 1 from a token's log-probability among labels and blank, without external scores."""
    return math.exp(min(acoustic_score, 0.0))


def word_confidence(acoustic_scores: Sequence[float], aggregation: Aggregation = Aggregation.MIN) -> float:
    """0 .. 1 from the log-probabilities of a word's tokens; ValueError if there are none."""
    if not acoustic_scores:
        raise ValueError("a word without tokens has no confidence")
    if aggregation is Aggregation.MIN:
        return token_confidence(min(acoustic_scores))
    total = math.fsum(acoustic_scores)
    return token_confidence(total if aggregation is Aggregation.PROD else total / len(acoustic_scores))
