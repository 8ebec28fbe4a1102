"""Boosted phrases in the characters that a model writes.

Server and gateway share it: the server boosts the phrases, the gateway names those that it leaves out.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

_LETTERS: Mapping[str, str] = {
    "\u00df": "ss", "\u00e6": "ae", "\u0153": "oe", "\u00f8": "o", "\u0142": "l", "\u0111": "d", "\u00f0": "d",
    "\u00fe": "th", "\u0131": "i", "\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u2010": "-", "\u2011": "-",
}  # fmt: skip
"""Letters and marks that Unicode does not decompose: ss, ae, oe, o, l, d, d, th, i, apostrophes and hyphens."""
_UNSPOKEN_INSIDE_WORDS = "'.\u00ae\u2122\u00a9"
_UNSPOKEN = ',;:!?\u00bf\u00a1"/_'
_UNSPOKEN_CATEGORIES = ("Pd", "Ps", "Pe", "Pi", "Pf")
"""Of dashes, brackets and quotation marks."""


def fit_phrase(text: str, alphabet: frozenset[str]) -> str | None:
    """The phrase in characters of the alphabet, with single spaces; None where it cannot be written.

    A character that the alphabet lacks becomes its other case, else its letter without marks (Zürich: zurich).
    Punctuation that is not spoken disappears: apostrophes and full stops join their word, all else is a space. A phrase
    with any other character is not written at all: a part of it would be another word.
    """
    parts = []
    for character in unicodedata.normalize("NFC", text):
        if character.isspace():
            parts.append(" ")
        elif (written := _fit_character(character, alphabet)) is not None:
            parts.append(written)
        else:
            return None
    return " ".join("".join(parts).split()) or None


@lru_cache(1 << 16)
def _fit_character(character: str, alphabet: frozenset[str]) -> str | None:
    """The character as it is written, "" for none; None where it cannot be left out."""
    if character in _UNSPOKEN_INSIDE_WORDS and character not in alphabet:
        return ""
    for form in _forms(character):
        if form and all(each in alphabet for each in form):
            return form
    category = unicodedata.category(character)
    if category.startswith("M") or _LETTERS.get(character) == "'":
        return ""
    return " " if character in _UNSPOKEN or category in _UNSPOKEN_CATEGORIES else None


def _forms(character: str) -> Iterator[str]:
    """The ways to write a character, the best first."""
    plain = _LETTERS.get(character.lower()) or "".join(
        each for each in unicodedata.normalize("NFKD", character) if not unicodedata.category(each).startswith("M")
    )
    for form in (character, plain) if plain.isascii() else (character,):
        yield from (form, form.lower(), form.upper())
