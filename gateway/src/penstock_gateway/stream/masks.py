"""Words of `--mask-words`, which become their first letter and asterisks in the texts of streams that ask for it.

A masked text has the length of the original, so that its stable characters stay.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from penstock_common.errors import shown
from penstock_common.results import Alternative
from penstock_common.writing import is_unspaced
from penstock_gateway.stream.events import Event, Final, Partial

_Part = TypeVar("_Part", bound=Partial | Final | Alternative)
MAX_WORDS = 10_000
_FORM = "WORD or LANGUAGE: WORD, a word with letters, digits, and apostrophes or hyphens inside"
_TAG = re.compile("[a-z]{2,3}(-[a-z0-9]{2,8})*")
_INNER = "'\u2019-"
"""Marks inside words."""
_MARKS = re.compile(f"([{_INNER}])")


class WordMasks:
    """The words of a file."""

    def __init__(self, words: Mapping[str, Collection[str]]):
        """words: the languages in lower case of each, by its one spelling; "" for all languages."""
        self._words = words

    @classmethod
    def parse(cls, content: bytes) -> "WordMasks":
        """Reads a file in UTF-8 with a word per line, after "LANGUAGE:" if it is of one only; # begins a comment.

        ValueError names a wrong line.
        """
        words: dict[str, set[str]] = {}
        for number, line in enumerate(content.decode("utf-8-sig").splitlines(), start=1):
            tag, colon, word = line.partition("#")[0].rpartition(":")
            tag, word = tag.strip().lower(), word.strip()
            if not word and not colon:
                continue
            if not _is_word(word) or (colon and not _TAG.fullmatch(tag)):
                raise ValueError(f"line {number} is {shown(line)}; accepted: {_FORM}")
            words.setdefault(_spelling(word), set()).add(tag)
        if not 0 < len(words) <= MAX_WORDS:
            raise ValueError(f"it has no word, or more than {MAX_WORDS:,}; accepted: lines {_FORM}")
        return cls(words)

    def event(self, event: Event, language: str) -> Event:
        """An event of a stream in this language, or in one that is not known: "". The last word may still change."""
        code = language.lower()
        tags = {"", code, code.partition("-")[0]}

        def is_masked(word: str) -> bool:
            found = self._words.get(_spelling(word), ())
            return bool(found) and (not code or not tags.isdisjoint(found))

        event = _with_masks(event, is_masked)
        if isinstance(event, Partial):
            return replace(event, stable_chars=max(event.text.rfind(" ", 0, event.stable_chars + 1), 0))
        return replace(event, alternatives=tuple(_with_masks(each, is_masked) for each in event.alternatives))


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _is_word(text: str) -> bool:
    """Words of scripts without spaces are not told apart in a text, so they are none."""
    is_whole = all((_is_letter(each) or each in _INNER) and not is_unspaced(each) for each in text)
    return is_whole and bool(text) and _is_letter(text[0]) and _is_letter(text[-1])


def _spelling(word: str) -> str:
    return unicodedata.normalize("NFC", word.replace("\u2019", "'")).casefold()


def _with_masks(part: _Part, is_masked: Callable[[str], bool]) -> _Part:
    words = tuple(replace(word, text=_masked(word.text, is_masked)) for word in part.words)
    return replace(part, text=_masked(part.text, is_masked), words=words)


def _masked(text: str, is_masked: Callable[[str], bool]) -> str:
    """Masks whole words, and parts of words at an apostrophe or hyphen."""
    runs = ("".join(run) for _, run in groupby(text, lambda each: _is_letter(each) or each in _INNER))
    cores = ((run, run.strip(_INNER)) for run in runs)
    pieces = ([*run.partition(core)] if is_masked(core) else _MARKS.split(run) for run, core in cores)
    return "".join(each[:1] + "*" * (len(each) - 1) if is_masked(each) else each for piece in pieces for each in piece)
