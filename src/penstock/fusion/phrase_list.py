"""PhraseList: what one stream wants to hear more or less often, checked when made. Knows no tokens and no tensors."""

import contextlib
import hashlib
import math
import numbers
import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import StreamError, StreamErrorKind, cut, shown

MOST_PHRASES = 2000
LONGEST_PHRASE_CHARACTERS = 200
LARGEST_BOOST = 100.0
_SHOWN_CHARACTERS = 40


class Phrase(NamedTuple):
    """One or more words."""

    text: str
    """Words with single spaces between them."""
    boost: float
    """Natural logarithm, added for each token of the phrase; below 0 for what should be heard less."""


class PhraseList:
    """Phrases in any order, each once. Two lists of the same phrases and boosts are equal and share a digest."""

    def __init__(self, phrases: Iterable[tuple[str, float]]):
        """phrases: (text, boost). StreamError INVALID_ARGUMENT names a phrase that is refused and what is accepted."""
        boosts: dict[str, float] = {}
        for count, (text, boost) in enumerate(phrases, start=1):
            if count > MOST_PHRASES:
                raise refusal(f"more than {MOST_PHRASES} phrases; accepted: up to {MOST_PHRASES} a stream")
            phrase = _checked(count, text, boost)
            if boosts.setdefault(phrase.text, phrase.boost) != phrase.boost:
                raise refusal(
                    f"phrase {count} ({shorten(phrase.text)}) is given twice, with boosts {boosts[phrase.text]:g} and "
                    f"{phrase.boost:g}; accepted: one boost a phrase"
                )
        self.phrases = tuple(Phrase(text, boosts[text]) for text in sorted(boosts))
        self.digest = _digest(self.phrases)

    def __len__(self) -> int:
        return len(self.phrases)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhraseList) and self.phrases == other.phrases

    def __hash__(self) -> int:
        return hash(self.digest)


def shorten(text: str) -> str:
    """A phrase's text as an error shows it: quoted, and cut where it is long."""
    return repr(cut(text, _SHOWN_CHARACTERS))


def refusal(message: str) -> StreamError:
    """The error by which a list is refused."""
    return StreamError(StreamErrorKind.INVALID_ARGUMENT, f"boosted phrases: {message}")


def _checked(number: int, text: str, boost: float) -> Phrase:
    if not isinstance(text, str):
        raise refusal(f"phrase {number} is {type(text).__name__}; accepted: text")
    name = f"phrase {number} ({shorten(text)})"
    if len(text) > LONGEST_PHRASE_CHARACTERS:
        raise refusal(f"{name} has {len(text)} characters; accepted: 1 to {LONGEST_PHRASE_CHARACTERS}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise refusal(f"{name} holds half of a surrogate pair; accepted: text that UTF-8 can write")
    words = text.split()
    if not words:
        raise refusal(f"{name} is empty; accepted: one or more words")
    return Phrase(" ".join(words), _checked_boost(name, boost))


def _checked_boost(name: str, boost: float) -> float:
    value = math.nan
    if isinstance(boost, numbers.Real) and not isinstance(boost, bool):
        with contextlib.suppress(OverflowError):
            value = float(boost)
    if not abs(value) <= LARGEST_BOOST:  # NaN is refused too
        raise refusal(
            f"{name} has boost {shown(boost)}; accepted: numbers from {-LARGEST_BOOST:g} to {LARGEST_BOOST:g}"
        )
    return value + 0.0  # -0.0 and 0.0 are the same boost and want the same digest


def _digest(phrases: tuple[Phrase, ...]) -> bytes:
    """SHA-256 of the content; lengths come first, so that no two lists have the same bytes."""
    digest = hashlib.sha256()
    for phrase in phrases:
        text = phrase.text.encode()
        digest.update(struct.pack("<Id", len(text), phrase.boost) + text)
    return digest.digest()
