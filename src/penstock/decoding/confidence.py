"""How sure a word is, from what the network alone thought of its tokens. Knows no language model and no boosting."""

import enum
import math
from collections.abc import Sequence


class Aggregation(enum.Enum):
    """How the probabilities of a word's tokens become one number."""

    LEAST = "least"
    """The least sure token's: a word with one doubtful piece is a doubtful word."""
    MEAN = "mean"
    """The geometric mean: long words are not punished for their length."""
    PRODUCT = "product"
    """The probability of the whole word."""


def token_confidence(acoustic_score: float) -> float:
    """0 .. 1 from a token's log-probability among labels and blank, without external scores."""
    return math.exp(min(acoustic_score, 0.0))


def word_confidence(acoustic_scores: Sequence[float], aggregation: Aggregation = Aggregation.LEAST) -> float:
    """0 .. 1 from the log-probabilities of a word's tokens; ValueError if there are none."""
    if not acoustic_scores:
        raise ValueError("a word without tokens has no confidence")
    if aggregation is Aggregation.LEAST:
        return token_confidence(min(acoustic_scores))
    total = math.fsum(acoustic_scores)
    return token_confidence(total if aggregation is Aggregation.PRODUCT else total / len(acoustic_scores))
