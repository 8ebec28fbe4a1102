"""Subtitles from words with times: cues, formatted as SRT or VTT.

The limits follow broadcasters' guidelines: two lines of 42 columns, cues of 1 s to 7 s, a new cue after a pause or a
sentence.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat, zip_longest
from typing import NamedTuple

from penstock_common.results import Word
from penstock_common.writing import SENTENCE_ENDS, blank_between, cells, printable

MAX_LINE_COLUMNS = 42
MAX_LINES = 2
MAX_CUE_MS = 7_000
MIN_CUE_MS = 1_000
"""A shorter cue is extended, up to the start of the next one."""
HOLD_MS = 300
"""A cue stays for this long after its last word, up to the start of the next one: a word's end is that of its last
token, while the word may still be heard."""
MAX_PAUSE_MS = 1_500
"""A longer silence between two words ends a cue."""

_CLOSING = "\"'\u201d\u2019\u00bb)]\u300d\u300f\uff09"
"""May stand behind the end of a sentence."""
_VTT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Cue(NamedTuple):
    """The text that is on the screen at one time."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def sentences(words: Iterable[Word]) -> Iterator[list[Word]]:
    """The words of one segment, a list per sentence: a word with a mark of `SENTENCE_ENDS` at its end is its last one.

    Models without punctuation have one.
    """
    sentence: list[Word] = []
    for word in words:
        sentence.append(word)
        if word.text.rstrip(_CLOSING).endswith(SENTENCE_ENDS):
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def spoken_parts(segments: Iterable[Sequence[Word]]) -> list[tuple[str | None, list[Word]]]:
    """The words of each segment, a part for each of its speakers in turn, with their names."""
    return [
        (None if who is None else f"Speaker {who}", list(part))
        for words in segments
        for who, part in groupby(words, lambda word: word.speaker)
    ]


def cues(
    segments: Iterable[Sequence[Word]],
    speaker: str | None = None,
    speakers: Iterable[str | None] | None = None,
    end_s: float | None = None,
) -> list[Cue]:
    """The cues of a stream: every word once, in order; cues do not overlap.

    A cue holds words of one segment. A single word that exceeds a limit is a cue of its own. Each cue starts with the
    speaker, if given; speakers: of each segment. end_s: of the audio, at the same clock as the words; no cue ends
    later, but for one that begins there.
    """
    spoken = zip(segments, repeat(speaker) if speakers is None else speakers, strict=False)
    groups = [(group, who) for words, who in spoken for part in sentences(words) for group in _groups(part, who)]
    drafts: list[Cue] = []
    for group, who in groups:
        earliest_ms = drafts[-1].end_ms if drafts else 0
        start_ms = max(group[0].start_ms, earliest_ms)
        end_ms = max(start_ms + 1, *(word.end_ms for word in group))
        drafts.append(Cue(start_ms, end_ms, tuple(_lines(group, who))))
    starts_ms = [cue.start_ms for cue in drafts[1:]]
    readable = [_readable(cue, next_ms) for cue, next_ms in zip_longest(drafts, starts_ms)]
    if end_s is None:
        return readable
    last_ms = round(1000 * end_s)
    return [cue._replace(end_ms=max(cue.start_ms + 1, min(cue.end_ms, last_ms))) for cue in readable]


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


def _groups(words: Sequence[Word], speaker: str | None) -> Iterator[list[Word]]:
    """The words of one sentence, a list per cue."""
    group: list[Word] = []
    for word in words:
        if group and not _fits(group, word, speaker):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _fits(group: list[Word], word: Word, speaker: str | None) -> bool:
    """True where the word belongs to the cue of the group and fits into it."""
    last = group[-1]
    is_same_phrase = word.start_ms - last.end_ms <= MAX_PAUSE_MS
    is_short = max(each.end_ms for each in (*group, word)) - group[0].start_ms <= MAX_CUE_MS
    return is_same_phrase and is_short and len(_lines([*group, word], speaker)) <= MAX_LINES


def _lines(group: Iterable[Word], speaker: str | None) -> list[str]:
    """Fills lines with the speaker and the words; words are never broken."""
    lines = [] if speaker is None else [f"{speaker}:"]
    before = ":"
    for word in group:
        text = printable(word.text)
        blank = " " if before == ":" else blank_between(before, text)
        if lines and cells(lines[-1] + blank + text) <= MAX_LINE_COLUMNS:
            lines[-1] += blank + text
        else:
            lines.append(text)
        before = text
    return lines


def _readable(cue: Cue, next_ms: int | None) -> Cue:
    """The cue, extended by HOLD_MS and to MIN_CUE_MS, or to the start of the next cue."""
    held_ms = min(cue.end_ms + HOLD_MS, cue.start_ms + MAX_CUE_MS)
    end_ms = max(cue.end_ms, held_ms, cue.start_ms + MIN_CUE_MS)
    return cue._replace(end_ms=end_ms if next_ms is None else max(cue.end_ms, min(end_ms, next_ms)))


def _time(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"
