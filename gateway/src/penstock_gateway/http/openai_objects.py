"""Shared by OpenAI's protocols, HTTP and Realtime: errors, log probabilities, the boost of a keyword."""

import math
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

from penstock_common.results import Word
from penstock_common.writing import blank_between
from penstock_gateway.errors import GatewayError
from penstock_gateway.stream.events import confidence

KEYWORD_NATS = 1.5
"""Boost per token of a keyword: sane with every search."""
UNKNOWN_SPEAKER = "unknown"
_ERROR_TYPES = {403: "permission_error", 429: "rate_limit_error"}
_MIN_CONFIDENCE = 1e-6  # ln(0) is no number in JSON


def logprob(word: Word) -> float:
    """ln of the word's confidence."""
    return round(math.log(max(confidence(word), _MIN_CONFIDENCE)), 4)


def logprobs(words: Sequence[Word], before: str = "") -> list[dict[str, Any]]:
    """A token per word; the blank in front of a word belongs to it. before: the text that the words follow."""
    lefts = [before, *(word.text for word in words)]
    texts = [blank_between(left, word.text) + word.text for left, word in zip(lefts, words, strict=False)]
    return [
        {"token": text, "logprob": logprob(word), "bytes": list(text.encode())}
        for text, word in zip(texts, words, strict=True)
    ]


def speaker_name(speaker: int | None, names: Sequence[str] = ()) -> str:
    """Names a speaker: by the client's names in order of arrival, else by a letter that is no client's name."""
    if speaker is None:  # the speaker model has failed
        return UNKNOWN_SPEAKER
    letters = [each for each in ascii_uppercase[len(names) :] if each not in names]
    return [*names, *letters][speaker - 1]


def error_body(error: GatewayError) -> dict[str, Any]:
    """The object that OpenAI's clients read: message, type, parameter and code."""
    status = error.code.status.http
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code.name.lower()}
