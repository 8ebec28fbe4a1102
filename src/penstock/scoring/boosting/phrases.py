"""Boosted phrases as a client sends them, validated."""

import contextlib
import math
import numbers
from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import ErrorCode, StreamError, cut, shown

MAX_PHRASES = 2000
MAX_PHRASE_CHARACTERS = 200
MAX_BOOST = 100.0
_SHOWN_CHARACTERS = 40


class Phrase(NamedTuple):
    """One or more words."""

    text: str
    """Words with single spaces between them."""
    boost: float
    """Natural logarithm, added for each token of the phrase; below 0 it makes the phrase less likely."""


def check_phrases(phrases: Iterable[tuple[str, float]]) -> tuple[Phrase, ...]:
    """Returns the phrases (text, boost) with single spaces, each once, sorted by text.

    StreamError PHRASES_INVALID names the first invalid phrase and what is accepted.
    """
    boosts: dict[str, float] = {}
    for count, (text, boost) in enumerate(phrases, start=1):
        if count > MAX_PHRASES:
            raise phrases_error(f"more than {MAX_PHRASES} phrases; accepted: up to {MAX_PHRASES} per stream")
        phrase = _checked(count, text, boost)
        if boosts.setdefault(phrase.text, phrase.boost) != phrase.boost:
            raise phrases_error(
                f"phrase {count} ({shorten(phrase.text)}) is given twice, with boosts {boosts[phrase.text]:g} and "
                f"{phrase.boost:g}; accepted: one boost per phrase"
            )
    return tuple(Phrase(text, boosts[text]) for text in sorted(boosts))


def shorten(text: str) -> str:
    """A phrase's text as an error shows it: quoted, and cut where it is long."""
    return repr(cut(text, _SHOWN_CHARACTERS))


def phrases_error(message: str) -> StreamError:
    """The error that rejects a list."""
    return StreamError(ErrorCode.PHRASES_INVALID, f"boosted phrases: {message}")


def _checked(number: int, text: str, boost: float) -> Phrase:
    if not isinstance(text, str):
        raise phrases_error(f"phrase {number} is {type(text).__name__}; accepted: text")
    name = f"phrase {number} ({shorten(text)})"
    if len(text) > MAX_PHRASE_CHARACTERS:
        raise phrases_error(f"{name} has {len(text)} characters; accepted: 1 to {MAX_PHRASE_CHARACTERS}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise phrases_error(f"{name} has an unpaired surrogate; accepted: valid Unicode text")
    words = text.split()
    if not words:
        raise phrases_error(f"{name} is empty; accepted: one or more words")
    return Phrase(" ".join(words), _checked_boost(name, boost))


def _checked_boost(name: str, boost: float) -> float:
    value = math.nan
    if isinstance(boost, numbers.Real) and not isinstance(boost, bool):
        with contextlib.suppress(OverflowError):
            value = float(boost)
    if not abs(value) <= MAX_BOOST:  # NaN is rejected too
        raise phrases_error(f"{name} has boost {shown(boost)}; accepted: numbers from {-MAX_BOOST:g} to {MAX_BOOST:g}")
    return value + 0.0  # -0.0 becomes 0.0: equal lists have equal bytes in a ticket
