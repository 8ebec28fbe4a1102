"""The boosted phrases of a stream, each once, and the token sequences that a Transducer would emit for them.

`penstock_common.options` has checked texts and boosts. Only the canonical segmentation of a phrase is used, the one
that the model saw in training: see docs/boosting.md.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.errors import ErrorCode, StreamError, cut
from penstock.model.tokenizer import Tokenizer
from penstock_common.phrases import has_words, written_forms

_SHOWN_CHARACTERS = 40
MAX_TOKENS = 20_000
"""Tokens of all phrases of a list together; bounds the time to build a list."""


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


class TokenPhrase(NamedTuple):
    """One phrase as labels."""

    tokens: tuple[int, ...]
    """At least one, each 0 .. V-1."""
    boost: float
    """Added to the score of each token, in nats."""


TokenPhrases = tuple[TokenPhrase, ...]
"""A stream's phrases, distinct token sequences; equal lists are one entry of the cache."""


def tokenize_phrases(phrases: Sequence[Phrase], tokenizer: Tokenizer, ignores_unknown: bool = False) -> TokenPhrases:
    """The phrases as tokens, in the list's order.

    StreamError PHRASES_INVALID names a phrase that the tokenizer cannot write; else as `unique_phrases`. With
    `ignores_unknown` a phrase counts in all of its `written_forms`; one that has none is left out.
    """
    spell = _forms_tokens if ignores_unknown else _tokenize
    return unique_phrases(phrases, lambda text: spell(text, tokenizer), ignores_unknown)


def unique_phrases(
    phrases: Sequence[Phrase], spell: Callable[[str], Sequence[tuple[int, ...]]], ignores_unknown: bool = False
) -> TokenPhrases:
    """Each token sequence once: the first of each phrase in the list's order, then the others.

    spell: the token sequences of a phrase, none for one that is left out. All have one bonus: the shortest one's.

    StreamError PHRASES_INVALID names a phrase that has the tokens of another phrase and another boost, or says that all
    phrases together are too long. With `ignores_unknown` the higher of two boosts counts.
    """
    by_tokens: dict[tuple[int, ...], tuple[str, float]] = {}
    others: dict[tuple[int, ...], float] = {}
    for text, given in phrases:
        spellings = spell(text)
        if not spellings:
            continue
        shortest = min(map(len, spellings))
        shares = {tokens: given * (shortest / len(tokens)) for tokens in spellings}
        tokens, boost = spellings[0], shares[spellings[0]]
        for each in spellings[1:]:
            others[each] = max(others.get(each, shares[each]), shares[each])
        first_text, first_boost = by_tokens.setdefault(tokens, (text, boost))
        if first_boost != boost and ignores_unknown:
            by_tokens[tokens] = (first_text, max(first_boost, boost))
        elif first_boost != boost:
            raise phrases_error(
                f"phrases {shorten(first_text)} and {shorten(text)} have the same tokens, with boosts "
                f"{first_boost:g} and {boost:g}; accepted: one boost per phrase"
            )
    total = sum(map(len, by_tokens))
    if total > MAX_TOKENS:
        raise phrases_error(f"{len(phrases)} phrases of {total} tokens together; accepted: up to {MAX_TOKENS} tokens")
    boosts = {**others, **{tokens: boost for tokens, (_, boost) in by_tokens.items()}}
    return tuple(TokenPhrase(tokens, boosts[tokens]) for tokens in dict.fromkeys([*by_tokens, *others]))


def continues_word(tokenizer: Tokenizer) -> list[bool]:
    """Returns, for each label 0 .. V-1, True where it continues the word before it.

    A space, a mark of punctuation or a control token ends the word before it; a letter, a digit, a combining mark and
    a byte continue it.
    """
    return [_continues_word(tokenizer.piece(token)) for token in range(tokenizer.size)]


def _continues_word(piece: str | bytes) -> bool:
    if isinstance(piece, bytes):
        return True
    return bool(piece) and (piece[0].isalnum() or unicodedata.category(piece[0]).startswith("M"))


def _tokenize(text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    has_text = has_words(text) and bool(tokenizer.encode(text))
    if has_text and (found := tokenizer.encodings(text)):
        return found
    if not has_text:
        raise phrases_error(f"phrase {shorten(text)} has no words; accepted: words in the model's alphabet")
    raise phrases_error(
        f"phrase {shorten(text)} has characters outside the model's alphabet: "
        f"{_unwritable(text, tokenizer)}; accepted: text as the model writes it{_hint(text, tokenizer)}"
    )


def _forms_tokens(text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The tokens of each form that the tokenizer can write; none that needs more byte pieces than the first."""
    found = [tokens for form in written_forms(text, tokenizer.alphabet) for tokens in tokenizer.encodings(form)]
    counts = [sum(isinstance(tokenizer.piece(token), bytes) for token in tokens) for tokens in found]
    return [tokens for tokens, count in zip(found, counts, strict=True) if count <= counts[0]]


def _unwritable(text: str, tokenizer: Tokenizer) -> str:
    characters = dict.fromkeys(c for c in text if not c.isspace() and tokenizer.unknown in tokenizer.encode(c))
    return ", ".join(map(repr, characters)) or "its characters together"


def _hint(text: str, tokenizer: Tokenizer) -> str:
    lower = text.lower()
    if lower != text and tokenizer.unknown not in tokenizer.encode(lower):
        return f", for example {lower!r}"
    return ""
