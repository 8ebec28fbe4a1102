"""Word confidence from the network's probabilities of the tokens, without language model and boosting."""

import math
from collections.abc import Sequence


def word_confidence(acoustic_scores: Sequence[float]) -> float:
    """0 .. 1, the lowest probability of a word's tokens, from their log-probabilities among labels and blank.

    One doubtful token makes the word doubtful. ValueError if there are none.
    """
    if not acoustic_scores:
        raise ValueError("a word without tokens has no confidence")
    return math.exp(min(*acoustic_scores, 0.0))
