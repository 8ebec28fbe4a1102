"""Subtitles from words with times: cues, formatted as SRT or VTT.

The limits follow broadcasters' guidelines: two lines of 42 columns, cues of 1 s to 7 s, a new cue after a pause.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from penstock_common.results import Word
from penstock_common.sentences import sentences
from penstock_common.writing import CLAUSE_ENDS, blank_between, cells, join_texts, printable

MAX_LINE_COLUMNS = 42
MAX_LINES = 2
MAX_CUE_MS = 7_000
MIN_CUE_MS = 1_000
"""A shorter cue is joined with a neighbour, or extended up to the start of the next one."""
HOLD_MS = 300
"""A cue stays for this long after its last word, up to the start of the next one: a word's end is that of its last
token, while the word may still be heard."""
MAX_PAUSE_MS = 1_500
"""A longer silence between two words ends a cue."""
MAX_INNER_PAUSE_MS = 750
"""A longer pause at the end of a sentence ends a cue, but where one would be shorter than `MIN_CUE_MS`."""
_SHORT_COST, _CUT_COST, _CLAUSE_CUT_COST, _MIXED_COST = 1_000.0, 3.0, 2.0, 2.0
"""A cue costs 1, and these: shown for less than `MIN_CUE_MS`; ended inside a sentence, or behind a clause of it; with
the end of a sentence inside and a part of another, and with such a pause inside."""

_VTT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NEVER_MS = 1 << 62


class Cue(NamedTuple):
    """The text that is on the screen at one time."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


class SpokenPart(NamedTuple):
    """Consecutive words of one segment and one speaker."""

    words: Sequence[Word]
    speaker: str | None = None
    """The name that begins its cues."""
    language: str = ""
    """See `sentences`."""


def _numbered(speaker: int | None) -> str | None:
    return None if speaker is None else f"Speaker {speaker}"


def spoken_parts(
    segments: Iterable[tuple[Sequence[Word], str]],
    channel: str | None = None,
    named: Callable[[int | None], str | None] = _numbered,
) -> list[SpokenPart]:
    """The words of each segment and its language, a part for each of its speakers in turn.

    named: the name of a speaker. With a channel, its name comes before: "left, Speaker 1".
    """
    return [
        SpokenPart(list(part), ", ".join(name for name in (channel, who) if name) or None, language)
        for words, language in segments
        for who, part in groupby(words, lambda word: named(word.speaker))
    ]


class _CueWord(NamedTuple):
    """A word of a cue, with times that rise."""

    text: str
    start_ms: int
    end_ms: int
    columns: int
    blank_columns: int
    """Between the word before and it, in one line."""
    speaker: str
    """The beginning of its cue; "" for none."""
    begins_sentence: bool
    begins_cue: bool
    """After a pause, or with another speaker."""


def cues(parts: Iterable[SpokenPart], end_s: float | None = None) -> list[Cue]:
    """The cues of a stream: every word once, in order; cues do not overlap.

    Between long pauses and changes of the speaker, words are divided so that the fewest cues are shorter than 1 s, then
    that few break a sentence and that short sentences share one. A word that exceeds a limit is a cue of its own.
    end_s: of the audio, at the same clock as the words; no cue ends later, but for one that begins there.
    """
    words = list(_spoken(parts))
    last_ms = _NEVER_MS if end_s is None else round(1000 * end_s)
    starts_ms = [*(word.start_ms for word in words), last_ms]
    found: list[Cue] = []
    for first, stop in pairwise(_borders(words, starts_ms)):
        start_ms = starts_ms[first]
        shown_ms = max(min(words[stop - 1].end_ms + HOLD_MS - start_ms, MAX_CUE_MS), MIN_CUE_MS)
        end_ms = max(start_ms + 1, min(start_ms + shown_ms, starts_ms[stop], last_ms))
        found.append(Cue(start_ms, end_ms, _lines([word.text for word in words[first:stop]], words[first].speaker)))
    return found


def srt(all_cues: Iterable[Cue]) -> str:
    """The cues as a SubRip file."""
    blocks = (
        f"{number}\n{_time(cue.start_ms, ',')} --> {_time(cue.end_ms, ',')}\n" + "".join(f"{x}\n" for x in cue.lines)
        for number, cue in enumerate(all_cues, start=1)
    )
    return "\n".join(blocks)


def vtt(all_cues: Iterable[Cue]) -> str:
    """The cues as a WebVTT file."""
    blocks = (
        f"\n{_time(cue.start_ms, '.')} --> {_time(cue.end_ms, '.')}\n"
        + "".join(f"{line.translate(_VTT_ESCAPES)}\n" for line in cue.lines)
        for cue in all_cues
    )
    return "WEBVTT\n" + "".join(blocks)


def _spoken(parts: Iterable[SpokenPart]) -> Iterator[_CueWord]:
    before = None
    for part in parts:
        speaker = f"{part.speaker}: " if part.speaker else ""
        for place, word in (each for words in sentences(part.words, part.language) for each in enumerate(words)):
            text, start_ms = printable(word.text), max(word.start_ms, before.end_ms if before else 0)
            is_joined = before and before.speaker == speaker and start_ms - before.end_ms <= MAX_PAUSE_MS
            end_ms, blank = max(word.end_ms, start_ms + 1), blank_between(before.text, text) if before else ""
            before = _CueWord(text, start_ms, end_ms, cells(text), len(blank), speaker, not place, not is_joined)
            yield before


def _borders(words: Sequence[_CueWord], starts_ms: Sequence[int]) -> list[int]:
    """The division at the least cost: 0, and the number of words up to the end of each cue."""
    costs, begins = [0.0] + [float("inf")] * len(words), [0] * (len(words) + 1)
    is_whole = [*(word.begins_sentence or word.begins_cue for word in words), True]
    for first in range(len(words)):
        is_mixed = is_apart = False
        for stop, columns in _fitting(words, first):
            cost = costs[first] + 1 + (columns / (MAX_LINES * MAX_LINE_COLUMNS)) ** 2 / 2
            cost += _SHORT_COST * (starts_ms[stop] - starts_ms[first] < MIN_CUE_MS)
            cost += _MIXED_COST * (is_apart + (is_mixed and not (is_whole[first] and is_whole[stop])))
            if not is_whole[stop]:
                cost += _CLAUSE_CUT_COST if words[stop - 1].text.endswith(tuple(CLAUSE_ENDS)) else _CUT_COST
            is_mixed |= is_whole[stop]
            is_apart |= is_whole[stop] and starts_ms[stop] - words[stop - 1].end_ms > MAX_INNER_PAUSE_MS
            if cost < costs[stop]:
                costs[stop], begins[stop] = cost, first
    borders = [len(words)]
    while borders[-1]:
        borders.append(begins[borders[-1]])
    return borders[::-1]


def _fitting(words: Sequence[_CueWord], first: int) -> Iterator[tuple[int, int]]:
    """The ends of the cues that may begin with the word `first`, and the columns of each."""
    total = filled = cells(words[first].speaker)
    lines = int(filled > 0)
    for place in range(first, len(words)):
        word = words[place]
        added = word.columns + (word.blank_columns if place > first else 0)
        is_full = not lines or filled + added > MAX_LINE_COLUMNS
        lines, filled = (lines + 1, word.columns) if is_full else (lines, filled + added)
        is_long = lines > MAX_LINES or word.end_ms - words[first].start_ms > MAX_CUE_MS
        if place > first and (is_long or word.begins_cue):
            return
        total += added
        yield place + 1, total


def _lines(texts: Sequence[str], speaker: str) -> tuple[str, ...]:
    """The speaker and the texts in one line, or in two of which the longer is as short as can be."""
    if (len(texts) == 1 and not speaker) or cells(speaker + join_texts(texts)) <= MAX_LINE_COLUMNS:
        return (speaker + join_texts(texts),)
    divisions = [
        ((speaker + join_texts(texts[:count])).rstrip(" "), join_texts(texts[count:]))
        for count in range(0 if speaker else 1, len(texts))
    ]
    return min(divisions, key=lambda lines: max(map(cells, lines)))


def _time(ms: int, point: str) -> str:
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
