"""The boosted phrases of a stream, each once. `penstock_client.options` has checked texts and boosts."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import ErrorCode, StreamError, cut

_SHOWN_CHARACTERS = 40


class Phrase(NamedTuple):
    """One or more words."""

    text: str
    """Words with single spaces between them."""
    boost: float
    """Natural logarithm, added for each token of the phrase; below 0 it makes the phrase less likely."""


def merge_phrases(phrases: Iterable[tuple[str, float]]) -> tuple[Phrase, ...]:
    """Returns the phrases (text, boost) with single spaces, each once, sorted by text.

    StreamError PHRASES_INVALID names a phrase with two boosts.
    """
    boosts: dict[str, float] = {}
    for number, (text, given) in enumerate(phrases, start=1):
        phrase = Phrase(" ".join(text.split()), given + 0.0)  # -0.0 becomes 0.0: equal lists are equal in a cache
        if boosts.setdefault(phrase.text, phrase.boost) != phrase.boost:
            raise phrases_error(
                f"phrase {number} ({shorten(phrase.text)}) is given twice, with boosts {boosts[phrase.text]:g} and "
                f"{phrase.boost:g}; accepted: one boost per phrase"
            )
    return tuple(Phrase(text, boosts[text]) for text in sorted(boosts))


def shorten(text: str) -> str:
    """A phrase's text as an error shows it: quoted, and cut where it is long."""
    return repr(cut(text, _SHOWN_CHARACTERS))


def phrases_error(message: str) -> StreamError:
    """The error that rejects a list."""
    return StreamError(ErrorCode.PHRASES_INVALID, f"boosted phrases: {message}")
