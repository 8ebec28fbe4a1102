"""What OpenAI's protocols, over HTTP and Realtime, say of words: the boost of a keyword, and log probabilities."""

import math
from collections.abc import Sequence
from typing import Any

from penstock_gateway.stream.events import Word

KEYWORD_NATS = 1.5
"""Boost per token of a keyword: sane with every search."""
_MIN_CONFIDENCE = 1e-6  # ln(0) is no number in JSON


def logprob(word: Word) -> float:
    """ln of the word's confidence."""
    return round(math.log(max(word.confidence, _MIN_CONFIDENCE)), 4)


def logprobs(words: Sequence[Word], is_first: bool) -> list[dict[str, Any]]:
    """A token per word; the blank in front of a word belongs to it."""
    texts = [f"{'' if is_first and i == 0 else ' '}{word.text}" for i, word in enumerate(words)]
    return [
        {"token": text, "logprob": logprob(word), "bytes": list(text.encode())}
        for text, word in zip(texts, words, strict=True)
    ]
