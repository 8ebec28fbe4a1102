"""Spoken numbers in a text as figures, by the rules of text2num and those for what it leaves.

Knows words and their language; no times, tokens or scores.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from text_to_num import find_numbers

_LAST_SPELLED = 10
"""Numbers up to this one that stand alone stay words."""
_SCALES = (100.0, 1000.0)
_MILLIONS = re.compile("(m|b|tr)il(l?i|h|j)(on|ón|õe|ão|oe|ar).*")
"""Words such as million, Milliarde, milhões: they stay, and the number before them is in figures."""
_MIN_RUN, _MIN_GROUPED_DIGITS = 3, 5
_CORE = re.compile(r"[^\W_](.*[^\W_])?", re.DOTALL)
"""A word without the marks around it."""
_MONTHS: Mapping[str, Collection[str]] = {
    language: names.split()
    for language, names in {
        "en": "january february april june july august september october november december",
        "de": "januar jänner februar märz april mai juni juli august september oktober november dezember",
        "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "nl": "januari februari maart april mei juni juli augustus september oktober november december",
        "da": "januar februar marts april maj juni juli august september oktober november december",
        "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    }.items()
}
"""`_is_month` has the other English ones."""
_OF_MONTH = {"en": ("of",), "es": ("de",), "pt": ("de",)}
_BEFORE_YEARS = {
    "en": ("in", "since", "until", "year", "of", "from", "by"), "de": ("in", "jahr", "seit", "bis"),
    "nl": ("in", "sinds", "jaar", "tot", "van"), "da": ("i", "siden", "år", "fra", "til"),
}  # fmt: skip
"""Words before a year that is spoken in two halves."""


class Figure(NamedTuple):
    """A number in figures, with the marks around it, in place of the words from `start` to before `end`."""

    start: int
    end: int
    text: str


@lru_cache(10_000)  # words recur
class _Spoken:
    """A word as text2num reads it."""

    __slots__ = ("begin", "core", "end", "is_apart", "is_million")

    def __init__(self, word: str, is_apart: bool):
        """is_apart: a pause or a mark precedes it."""
        core = _CORE.search(word)
        self.begin, self.end = core.span() if core else (0, len(word))
        self.core = word[self.begin : self.end].lower()
        self.is_apart = is_apart or self.begin > 0
        self.is_million = _MILLIONS.fullmatch(self.core) is not None

    def text(self) -> str:
        return self.core

    def nt_separated(self, previous: "_Spoken") -> bool:
        return self.is_apart

    def not_a_number_part(self) -> bool:
        return self.is_million


class _Number(NamedTuple):
    """A number that text2num has found, or several that are one."""

    start: int
    end: int
    text: str
    value: float
    is_ordinal: bool = False
    gap: str | None = None
    """Digits spoken between the number before and this one: "", or "0" for the English "oh"; None: they are apart."""
    is_joined: bool = False


def find_figures(words: Sequence[str], language: str, pauses: Sequence[bool] = ()) -> list[Figure]:
    """The numbers among the words of a text, in order.

    language: one of `FIGURE_LANGUAGES`. pauses: of each word, whether a pause precedes it.
    """
    return _Finder(words, language, pauses or [False] * len(words)).figures()


def figures_of(text: str, language: str) -> str:
    """A text without times, with its numbers in figures."""
    words = text.split()
    for start, end, figure in reversed(find_figures(words, language)):
        words[start:end] = [figure]
    return " ".join(words)


class _Finder:
    def __init__(self, words: Sequence[str], language: str, pauses: Sequence[bool]):
        self._words, self._language, self._spoken = words, language, list[_Spoken]()
        has_mark = False
        for word, pause in zip(words, pauses, strict=True):
            self._spoken.append(_Spoken(word, pause or has_mark))
            has_mark = self._spoken[-1].end < len(word)

    def figures(self) -> list[Figure]:
        found = list[_Number]()
        for each in find_numbers(self._spoken, self._language, 0.0):
            gap = self._gap(found[-1].end, each.start) if found else None
            found.append(_Number(each.start, each.end, each.text, each.value, each.is_ordinal, gap))
        numbers = list[_Number]()
        while found:
            count, number = self._run(found) or self._year(found, numbers) or (1, found[0])
            numbers.append(number)
            del found[:count]
        return [self._written(number) for place, number in enumerate(numbers) if self._is_figure(numbers, place)]

    def _is(self, place: int, words: Collection[str]) -> bool:
        """True for one of these words; False beyond the text."""
        return 0 <= place < len(self._spoken) and self._spoken[place].core in words

    def _is_month(self, place: int) -> bool:
        """English may and march are months with a capital only: they are verbs, too."""
        has_capital = self._language == "en" and self._is(place, ("may", "march")) and self._words[place][0].isupper()
        return has_capital or self._is(place, _MONTHS[self._language])

    def _gap(self, end: int, start: int) -> str | None:
        """The gap between a number that ends and one that starts at these words."""
        if start > end:
            has_oh = start == end + 1 and self._language == "en" and self._is(end, ("oh", "o"))
            if not has_oh or self._spoken[end].is_apart:
                return None
        return None if self._spoken[start].is_apart else "0" * (start - end)

    def _run(self, found: Sequence[_Number]) -> tuple[int, _Number] | None:
        """At least three single digits in a row are one number; returns how many numbers it replaces."""
        count, text = 0, ""
        for number in found:
            gap = number.gap if count else ""
            is_digits = number.value < 10 and number.text.isdigit() and len(number.text) == number.end - number.start
            if gap is None or not is_digits:
                break
            count, text = count + 1, text + gap + number.text
        if len(text) < _MIN_RUN or count < 2:
            return None
        return count, found[0]._replace(end=found[count - 1].end, text=text, value=float(text), is_joined=True)

    def _year(self, found: Sequence[_Number], before: Sequence[_Number]) -> tuple[int, _Number] | None:
        """A year of two halves, in a date or after a word such as "in"."""
        century, *others = found[:2]
        if not others or not 13 <= century.value <= 20 or len(century.text) != 2:
            return None
        gap, text, place = others[0].gap, others[0].text, century.start - 1
        is_dated = self._is(place, _BEFORE_YEARS.get(self._language, ())) or self._is_month(place)
        is_dated |= bool(before) and before[-1].end == century.start and before[-1].is_ordinal
        if gap is None or not text.isdigit() or len(gap + text) != 2 or not (is_dated or gap):
            return None
        year = century.text + gap + text
        return 2, century._replace(end=others[0].end, text=year, value=float(year), is_joined=True)

    def _is_day(self, number: _Number) -> bool:
        """The number of a day beside its month. Articles are no days, nor are English cardinals."""
        if number.value > 31 or (not number.is_ordinal and (number.value <= 1 or self._language == "en")):
            return False
        place = number.end + self._is(number.end, _OF_MONTH.get(self._language, ()))
        is_apart = any(each.is_apart for each in self._spoken[number.end : place + 1])
        return (self._is_month(place) and not is_apart) or (self._language == "en" and self._is_month(number.start - 1))

    def _is_figure(self, numbers: Sequence[_Number], place: int) -> bool:
        """False for a number that stays a word: a small one, or a single "hundred"."""
        number = numbers[place]
        is_one_word = number.end - number.start == 1
        if number.is_joined or not is_one_word or not (number.text.isdigit() or number.is_ordinal):
            return True
        if number.value in _SCALES:
            return False
        if number.value > _LAST_SPELLED or self._is_day(number):
            return True
        follows = number.end < len(self._spoken) and self._spoken[number.end].is_million
        return number.value > 1 and (follows or any(
            after.gap == "" and max(before.value, after.value) > _LAST_SPELLED
            and not any(each.is_ordinal or each.value in _SCALES for each in (before, after))
            for before, after in pairwise(numbers[max(place - 1, 0) : place + 2])
        ))  # fmt: skip

    def _written(self, number: _Number) -> Figure:
        start, end, text = number.start, number.end, number.text
        if self._language == "en" and self._is(start, ("hundred", "thousand")) and self._is(start - 1, ("a",)):
            start -= not self._spoken[start].is_apart
        elif number.is_ordinal and self._language == "fr":
            text = text.replace("ème", "e")
        if len(text) >= _MIN_GROUPED_DIGITS and text.isdigit() and text[0] != "0" and not number.is_joined:
            text = f"{int(text):,}".replace(",", {"en": ",", "fr": ""}.get(self._language, "."))
        first, last = self._spoken[start], self._spoken[end - 1]
        before, after = self._words[start][: first.begin], self._words[end - 1][last.end :]
        return Figure(start, end, before + text + after.removeprefix("." if text.endswith(".") else ""))
