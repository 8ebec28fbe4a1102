"""Writing of texts: their marks, scripts without spaces, the blanks between texts, and columns of a terminal."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

SENTENCE_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\uff0e", "\uff61", "\u061f", "\u0964")
CLAUSE_ENDS = ",;:\u2026\u3001\uff0c\uff1a\uff1b\uff64\u30fb\u060c\u061b\u06d4\u0965"
"""Marks that end a clause."""
_BEGINS_WORDS = "\u00bf\u00a1\u2047"
"""Punctuation that is no mark: Spanish's inverted ones, and how SentencePiece writes an unknown piece."""
_UNSPACED = re.compile(
    "[\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u2e80-\u2fdf\u3001-\u303f\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3041-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\U0001aff0-\U0001b16f"  # Kana, Bopomofo
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f]"  # wide marks, narrow Kana
)
_EXTENDING = "\u0e33\u0eb3\u200c\u200d\uff9e\uff9f"
"""Parts of the character before, beside combining ones: the vowel AM, joiners, narrow voiced marks."""


def is_unspaced(character: str) -> bool:
    """True for characters of scripts that put no spaces between words, and for their marks."""
    return bool(_UNSPACED.match(character))


@lru_cache(maxsize=8192)
def is_mark(text: str) -> bool:
    """True for marks alone, blanks aside: punctuation that stands at the word before, as NeMo has it.

    Opening brackets and quotes belong to the word behind them, so they are none.
    """
    return bool(text.strip(" ")) and all(
        unicodedata.category(each) in ("Pc", "Pd", "Pe", "Pf", "Po") and each not in _BEGINS_WORDS
        for each in text.strip(" ")
    )


def may_begin_word(mark: str) -> bool:
    """True for marks such as the apostrophe of "'em"; False where one of them ends a sentence, a clause or brackets."""
    return not any(x in SENTENCE_ENDS or x in CLAUSE_ENDS or unicodedata.category(x) == "Pe" for x in mark)


def split_words(text: str, before: str = "") -> list[str]:
    """Splits `text`, which goes on behind the word `before`: what continues it, or "", then each word that begins.

    Words end at white space; in scripts without spaces each character is one, with its combining ones and marks.
    """
    if text.isascii() and before.isascii():
        return re.split(r"\s", text)
    parts, last = [""], ""
    for place, each in enumerate(before[-16:] + text, start=-len(before[-16:])):
        is_extending = unicodedata.category(each)[0] == "M" or each in _EXTENDING
        if each.isspace() and place >= 0:
            parts.append("")
            last = ""
            continue
        if place >= 0:
            is_border = last and not is_mark(each) and unicodedata.category(last) not in ("Ps", "Pi")
            if is_border and not is_extending and (is_unspaced(each) or is_unspaced(last)):
                parts.append("")
            parts[-1] += each
        if not is_extending and (is_unspaced(each) or not is_mark(each)):
            last = each
    return parts


def blank_between(left: str, right: str) -> str:
    """Separator of two texts: a blank, or "" at the characters of a script without spaces, or where one is empty."""
    return " " if left and right and not is_unspaced(left[-1]) and not is_unspaced(right[0]) else ""


def join_texts(texts: Iterable[str]) -> str:
    """The text of consecutive ones, such as the segments of a stream or the words of a sentence."""
    parts = [text for text in texts if text]
    return "".join(parts[:1] + [blank_between(left, right) + right for left, right in pairwise(parts)])


def wrap(line: str, columns: int) -> list[str]:
    """Breaks a line between words, and inside words longer than a row. An empty line is one empty row."""
    rows = [""]
    for word in re.findall(r"\s*\S+", line):
        if rows[-1] and cells(rows[-1]) + cells(word) > columns:
            rows.append("")
            word = word.lstrip()
        for character in word:
            if rows[-1] and cells(rows[-1]) + cells(character) > columns:
                rows.append("")
            rows[-1] += character
    return rows


def cells(text: str) -> int:
    """The width of a text in terminal columns: two for wide characters, none for combining ones."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(_character_cells(character) for character in text)


def _character_cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def printable(text: str) -> str:
    """The text with its control characters replaced, so that it cannot control the terminal."""
    return "".join("\ufffd" if unicodedata.category(character) == "Cc" else character for character in text)
