"""Words of `--mask-words`, which become their first letter and asterisks in the texts of streams that ask for it.

A masked text has the length of the original, so that its stable characters stay.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from penstock_common.results import Word
from penstock_common.writing import is_unspaced
from penstock_gateway.errors import shown
from penstock_gateway.stream.events import Event, Partial

MAX_WORDS = 10_000
_FORM = "WORD or LANGUAGE: WORD, a word with letters, digits, and apostrophes or hyphens inside"
_TAG = re.compile("[a-z]{2,3}(-[a-z0-9]{2,8})*")
_INNER = "'\u2019-"
"""Marks inside words."""


class WordMasks:
    """The words of a file, by language."""

    def __init__(self, words: Mapping[str, frozenset[str]]):
        """words: in one spelling, by the language in lower case; "" for all languages."""
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
            words.setdefault(tag, set()).add(_spelling(word))
        if not 0 < sum(map(len, words.values())) <= MAX_WORDS:
            raise ValueError(f"it has no word, or more than {MAX_WORDS:,}; accepted: lines {_FORM}")
        return cls({tag: frozenset(each) for tag, each in words.items()})

    def event(self, event: Event, language: str) -> Event:
        """An event of a stream in this language, or in one that is not known: "". The last word may still change."""
        tags = {"", language.lower(), language.lower().partition("-")[0]} if language else self._words.keys()
        chosen = frozenset[str]().union(*(self._words.get(tag, ()) for tag in tags))
        text, words = _masked(event.text, chosen), _masked_words(event.words, chosen)
        if isinstance(event, Partial):
            stable_chars = max(event.text.rfind(" ", 0, event.stable_chars + 1), 0)
            return replace(event, text=text, words=words, stable_chars=stable_chars)
        others = tuple(
            replace(each, text=_masked(each.text, chosen), words=_masked_words(each.words, chosen))
            for each in event.alternatives
        )
        return replace(event, text=text, words=words, alternatives=others)


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _is_word(text: str) -> bool:
    """Words of scripts without spaces are not told apart in a text, so they are none."""
    is_whole = all((_is_letter(each) or each in _INNER) and not is_unspaced(each) for each in text)
    return is_whole and bool(text) and _is_letter(text[0]) and _is_letter(text[-1])


def _spelling(word: str) -> str:
    return unicodedata.normalize("NFC", word.replace("\u2019", "'")).casefold()


def _masked(text: str, words: frozenset[str]) -> str:
    """Masks whole words, and parts of words at an apostrophe or hyphen."""
    runs = ("".join(run) for _, run in groupby(text, lambda each: _is_letter(each) or each in _INNER))
    return "".join(_masked_run(run, words) for run in runs)


def _masked_words(words: Iterable[Word], masked: frozenset[str]) -> tuple[Word, ...]:
    return tuple(replace(word, text=_masked(word.text, masked)) for word in words)


def _masked_run(run: str, words: frozenset[str]) -> str:
    core = run.strip(_INNER)
    if _spelling(core) in words:
        return run.replace(core, core[0] + "*" * (len(core) - 1), 1)
    parts = re.split(f"([{_INNER}])", run)
    return "".join(part[:1] + "*" * (len(part) - 1) if _spelling(part) in words else part for part in parts)
