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
"""Unicode categories of dashes, brackets and quotation marks."""
_UNWRITABLE = "\0"
"""Stands for a character that cannot be left out."""
_MAX_CHARACTERS = 1 << 16
"""In a table: clients choose the characters."""


def has_words(text: str) -> bool:
    """False for a phrase of marks and blanks alone, which is not spoken."""
    return any(unicodedata.category(character)[0] not in "PZC" for character in text)


def fit_phrase(text: str, alphabet: frozenset[str]) -> str | None:
    """The phrase in characters of the alphabet, with single spaces; None where it cannot be written.

    A character that the alphabet lacks becomes its other case, else its letter without marks (Zürich: zurich).
    Punctuation that is not spoken disappears: apostrophes and full stops join their word, all else is a space. A phrase
    with any other character is not written at all: a part of it would be another word.
    """
    written = unicodedata.normalize("NFC", text).translate(_table(alphabet))
    return " ".join(written.split()) if _UNWRITABLE not in written and has_words(written) else None


def written_forms(text: str, alphabet: frozenset[str]) -> list[str]:
    """The ways in which a model may write the phrase, each once: as it is, then as `fit_phrase` writes it, then each
    word capitalized, the first word capitalized, all capitals, all small letters. None of a phrase without words.
    """
    if not has_words(text):
        return []
    fitted = fit_phrase(text, alphabet) or text
    small = fitted.lower()
    capitalized = " ".join(word.capitalize() for word in small.split())
    return [*dict.fromkeys((text, fitted, capitalized, small.capitalize(), fitted.upper(), small))]


class _Table(dict[int, str]):
    """Spelling of each character, for `str.translate`; made as characters come."""

    def __init__(self, alphabet: frozenset[str]):
        super().__init__()
        self._alphabet = alphabet

    def __missing__(self, code: int) -> str:
        if len(self) >= _MAX_CHARACTERS:
            self.clear()
        character = chr(code)
        written = " " if character.isspace() else _fit_character(character, self._alphabet)
        self[code] = _UNWRITABLE if written is None else written
        return self[code]


_table = lru_cache(16)(_Table)


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
