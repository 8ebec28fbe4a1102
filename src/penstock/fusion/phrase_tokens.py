"""Phrases as the token sequences that a Transducer would emit for them. Knows the tokenizer, no automaton.

Only the canonical segmentation of a phrase is used, the one that the model saw in training: see docs/boosting.md.
"""

import unicodedata
from typing import NamedTuple

from penstock.fusion.phrase_list import PhraseList, refusal, shorten
from penstock.tokenizer import Tokenizer

MOST_TOKENS = 20_000
"""Of all phrases of a list together: what bounds the time in which a list is made ready."""


class TokenPhrase(NamedTuple):
    """One phrase as labels."""

    tokens: tuple[int, ...]
    """At least one, each 0 .. V-1."""
    boost: float
    """For each token."""


def tokenize_phrases(phrases: PhraseList, tokenizer: Tokenizer) -> list[TokenPhrase]:
    """The phrases as tokens, in the list's order.

    StreamError INVALID_ARGUMENT names a phrase that the tokenizer cannot write, or that has the tokens of another
    phrase and another boost; or says that all phrases together are too long.
    """
    found: dict[tuple[int, ...], tuple[str, float]] = {}
    for text, boost in phrases.phrases:
        tokens = _tokenize(text, tokenizer)
        first_text, first_boost = found.setdefault(tokens, (text, boost))
        if first_boost != boost:
            raise refusal(
                f"phrases {shorten(first_text)} and {shorten(text)} are the same to the model, with boosts "
                f"{first_boost:g} and {boost:g}; accepted: one boost a phrase"
            )
    total = sum(map(len, found))
    if total > MOST_TOKENS:
        raise refusal(f"{len(phrases)} phrases of {total} tokens together; accepted: up to {MOST_TOKENS} tokens")
    return [TokenPhrase(tokens, boost) for tokens, (_, boost) in found.items()]


def continues_word(tokenizer: Tokenizer) -> list[bool]:
    """For each label 0 .. V-1, True where it carries on the word before it.

    A space, a mark of punctuation or a control token ends the word before it; a letter, a digit, a combining mark and
    a byte do not.
    """
    return [_continues_word(tokenizer.piece(token)) for token in range(tokenizer.size)]


def _continues_word(piece: str | bytes) -> bool:
    if isinstance(piece, bytes):
        return True
    return bool(piece) and (piece[0].isalnum() or unicodedata.category(piece[0]).startswith("M"))


def _tokenize(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    tokens = tokenizer.encode(text)
    if not tokens:
        raise refusal(f"phrase {shorten(text)} leaves no tokens; accepted: words in the model's alphabet")
    if tokenizer.unknown in tokens:
        raise refusal(
            f"phrase {shorten(text)} cannot be written in the model's alphabet because of "
            f"{_unwritable(text, tokenizer)}; accepted: text as the model writes it{_hint(text, tokenizer)}"
        )
    return tuple(tokens)


def _unwritable(text: str, tokenizer: Tokenizer) -> str:
    characters = dict.fromkeys(c for c in text if not c.isspace() and tokenizer.unknown in tokenizer.encode(c))
    return ", ".join(map(repr, characters)) or "its characters together"


def _hint(text: str, tokenizer: Tokenizer) -> str:
    lower = text.lower()
    if lower != text and tokenizer.unknown not in tokenizer.encode(lower):
        return f", for example {lower!r}"
    return ""
