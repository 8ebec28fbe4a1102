"""Errors of who spoke: the diarization error rate (DER) and the cpWER; reference turns from RTTM files.

pyannote.metrics and meeteval find the same (tests/oracle/test_diarization_errors.py). Neither is used here: the one
needs a numpy that the server does not run with, the other downloads its DER as a Perl script when it runs.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ManifestError, shown
from penstock.evaluation.errors import NO_NORMALIZER, EditCounts, compare, total
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import Normalizer
from penstock.frontend.audio_file import FilePart

COLLARS_S = (0.0, 0.25)
"""Times before and after each boundary of a reference turn that are not scored, each for a DER of its own."""
_TOUCHING_S = 1e-6
"""Between two turns that touch: an RTTM has durations, whose sums are rounded."""
_SPEAKER = "SPEAKER"
_OTHER_TYPES = {
    "SEGMENT", "NOSCORE", "NO_RT_METADATA", "LEXEME", "NON-LEX", "NON-SPEECH", "FILLER", "EDIT", "IP", "SU", "CB",
    "A/P", "SPKR-INFO",
}  # fmt: skip
"""Lines of RTTM that say nothing of who speaks when."""
_FIELDS = (9, 10)


class SpeakerTurn(NamedTuple):
    """A speaker speaks without a break; turns of several may overlap."""

    speaker: Hashable
    start_s: float
    end_s: float


def reference_turns(path: Path, utterances: Sequence[Utterance]) -> list[Sequence[SpeakerTurn]]:
    """The turns of each utterance, cut at its ends, from an RTTM file or the `*.rttm` of a folder, by the stem of its
    audio file.

    Without turns is only a recording without reference text, or with an RTTM file of its own. Raises ManifestError.
    """
    try:
        files = sorted(path.glob("*.rttm")) if path.is_dir() else [path]
        texts = [(file, file.read_text(encoding="utf-8-sig")) for file in files]
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 text: {error}") from error
    if not files:
        raise ManifestError(f"{path}: has no *.rttm")
    found: dict[str, list[SpeakerTurn]] = {_name(file): [] for file in files if path.is_dir()}
    for file, text in texts:
        for number, line in enumerate(text.split("\n"), 1):
            if (parsed := _parse(f"{file}:{number}", line)) is not None:
                found.setdefault(parsed[0], []).append(parsed[1])
    names: dict[str, Utterance] = {}
    for utterance in utterances:
        where, name = f"{utterance.manifest}:{utterance.line}", _name(utterance.audio)
        if name not in found and utterance.reference.strip():
            raise ManifestError(f"{where}: {path} has no turns of {name}, the recording {utterance.audio.name}")
        other = names.setdefault(name, utterance)
        if other.audio != utterance.audio:
            raise ManifestError(f"{where}: {utterance.audio} and {other.audio} are both {name} in {path}")
    return [_within(utterance.part, found.get(_name(utterance.audio), [])) for utterance in utterances]


def _within(part: FilePart, turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
    cut = (SpeakerTurn(who, max(begin_s, part.begin_s), min(end_s, part.end_s)) for who, begin_s, end_s in turns)
    return [turn for turn in cut if turn.start_s < turn.end_s]


@dataclass(frozen=True)
class DiarizationErrors:
    """Seconds of speech; two speakers at the same time count twice."""

    missed_s: float = 0.0
    false_alarm_s: float = 0.0
    confused_s: float = 0.0
    speech_s: float = 0.0
    """Speech of the reference."""

    def __add__(self, other: "DiarizationErrors") -> "DiarizationErrors":
        return DiarizationErrors(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def rate(self) -> float | None:
        """The DER. None without reference speech."""
        errors_s = self.missed_s + self.false_alarm_s + self.confused_s
        return errors_s / self.speech_s if self.speech_s else None


def diarization_errors(
    reference: Iterable[tuple[Hashable, float, float]],
    hypothesis: Iterable[tuple[Hashable, float, float]],
    collar_s: float = 0.0,
) -> DiarizationErrors:
    """The errors of turns (speaker, start_s, end_s) of one recording; overlaps are scored.

    Speakers are mapped one to one, so that most time is right. A reference speaker's turns that touch are one: a collar
    forgives errors where somebody begins or ends, not where a transcript is divided.
    """
    parts = list(_parts(_joined(reference), _joined(hypothesis), collar_s))
    # 1) which speaker is which
    theirs = sorted({speaker for _, speakers, _ in parts for speaker in speakers}, key=str)
    ours = sorted({speaker for _, _, speakers in parts for speaker in speakers}, key=str)
    shared = dict.fromkeys(((a, b) for a in theirs for b in ours), 0.0)
    for length_s, speaking, found in parts:
        for pair in ((a, b) for a in speaking for b in found):
            shared[pair] += length_s
    chosen = assign([[-shared[a, b] for b in ours] for a in theirs])
    mapping = {a: ours[place] for a, place in zip(theirs, chosen, strict=True) if place is not None}
    # 2) what is wrong with that
    missed_s = false_alarm_s = confused_s = speech_s = 0.0
    for length_s, speaking, found in parts:
        right = sum(mapping.get(speaker) in found for speaker in speaking if speaker in mapping)
        speech_s += length_s * len(speaking)
        missed_s += length_s * max(len(speaking) - len(found), 0)
        false_alarm_s += length_s * max(len(found) - len(speaking), 0)
        confused_s += length_s * (min(len(speaking), len(found)) - right)
    return DiarizationErrors(missed_s, false_alarm_s, confused_s, speech_s)


def word_errors(
    reference: Mapping[str, str], hypothesis: Mapping[int, str], normalizer: Normalizer = NO_NORMALIZER
) -> EditCounts:
    """Word errors of the texts of speakers, mapped one to one so that they are fewest: their rate is the cpWER.

    Watanabe et al., "CHiME-6 Challenge", 2020. A speaker without a counterpart is deleted or inserted.
    """
    texts, found = list(reference.values()), list(hypothesis.values())
    size = max(len(texts), len(found))
    texts, found = ([*each, *[""] * (size - len(each))] for each in (texts, found))
    counts = [[compare(text, other, normalizer).words for other in found] for text in texts]
    chosen = assign([[float(each.edits) for each in row] for row in counts])
    return total(row[place] for row, place in zip(counts, chosen, strict=True) if place is not None)


class FoundSpeakers(NamedTuple):
    """Speakers of a recording, as they were found."""

    turns: Sequence[tuple[int, float, float]]
    """Speaker, start_s, end_s."""
    texts: Mapping[int, str]
    """By speaker."""


@dataclass(frozen=True)
class SpeakerErrors:
    """Errors of one utterance, or of several."""

    diarization: tuple[DiarizationErrors, ...] = ()
    """For each of `COLLARS_S`; empty without reference turns."""
    words: EditCounts | None = None
    """None without a reference of who says what."""


def speaker_errors(
    utterance: Utterance, spoken: FoundSpeakers, normalizer: Normalizer = NO_NORMALIZER
) -> SpeakerErrors:
    """The errors that the utterance has references for."""
    turns, texts = utterance.turns, utterance.speaker_texts
    times = () if turns is None else tuple(diarization_errors(turns, spoken.turns, each) for each in COLLARS_S)
    return SpeakerErrors(times, word_errors(texts, spoken.texts, normalizer) if texts else None)


def sum_errors(errors: Iterable[SpeakerErrors | None]) -> SpeakerErrors:
    """Sums the errors of all utterances."""
    found = [each for each in errors if each is not None]
    times = zip(*(each.diarization for each in found if each.diarization), strict=True)
    words = [each.words for each in found if each.words is not None]
    return SpeakerErrors(tuple(sum(each, DiarizationErrors()) for each in times), total(words) if words else None)


def assign(costs: Sequence[Sequence[float]]) -> list[int | None]:
    """The column of each row, different ones, so that the sum of costs is smallest; None for rows without a column.

    The Hungarian method with potentials, O(n^3).
    """
    size = max([len(costs), *map(len, costs)], default=0)
    square = [[*row, *[0.0] * (size - len(row))] for row in [*costs, *[[] for _ in range(size - len(costs))]]]
    row_of, of_rows, of_columns = [-1] * (size + 1), [0.0] * size, [0.0] * (size + 1)
    for row in range(size):
        row_of[size], column = row, size  # an alternating path from a column that is not there
        least, before, done = [math.inf] * size, [size] * size, [False] * (size + 1)
        while row_of[column] >= 0:
            done[column] = True
            of_row = row_of[column]
            for other in range(size):
                cost = square[of_row][other] - of_rows[of_row] - of_columns[other]
                if not done[other] and cost < least[other]:
                    least[other], before[other] = cost, column
            following = min((other for other in range(size) if not done[other]), key=least.__getitem__)
            step = least[following]
            for other in range(size + 1):
                if done[other]:
                    of_rows[row_of[other]] += step
                    of_columns[other] -= step
                elif other < size:
                    least[other] -= step
            column = following
        while column != size:
            row_of[column], column = row_of[before[column]], before[column]
    columns = {row: column for column, row in enumerate(row_of[:size])}
    return [columns[row] if columns[row] < len(costs[row]) else None for row in range(len(costs))]


def _joined(turns: Iterable[tuple[Hashable, float, float]]) -> list[SpeakerTurn]:
    """The turns of each speaker, those that touch or overlap as one."""
    found: dict[Hashable, list[SpeakerTurn]] = {}
    for speaker, start_s, end_s in sorted(turns, key=lambda turn: turn[1]):
        own = found.setdefault(speaker, [])
        if own and start_s <= own[-1].end_s + _TOUCHING_S:
            own[-1] = own[-1]._replace(end_s=max(end_s, own[-1].end_s))
        elif end_s > start_s:
            own.append(SpeakerTurn(speaker, start_s, end_s))
    return [turn for own in found.values() for turn in own]


def _parts(
    reference: Sequence[SpeakerTurn], hypothesis: Sequence[SpeakerTurn], collar_s: float
) -> Iterator[tuple[float, frozenset[Hashable], frozenset[Hashable]]]:
    """The scored parts in which the same speakers speak: seconds, speakers of the reference, of the hypothesis."""
    edges = [edge for turn in reference for edge in (turn.start_s, turn.end_s)] if collar_s else []
    sides = (reference, hypothesis, [SpeakerTurn(n, e - collar_s, e + collar_s) for n, e in enumerate(edges)])
    events = [
        (time_s, side, turn.speaker, is_start)
        for side, turns in enumerate(sides)
        for turn in turns
        for time_s, is_start in ((turn.start_s, True), (turn.end_s, False))
    ]
    speaking: tuple[set[Hashable], ...] = (set(), set(), set())
    before_s = -math.inf
    for time_s, side, speaker, is_start in sorted(events, key=lambda event: (event[0], event[3])):  # ends first
        if time_s > before_s and (speaking[0] or speaking[1]) and not speaking[2]:
            yield time_s - before_s, frozenset(speaking[0]), frozenset(speaking[1])
        before_s = time_s
        (speaking[side].add if is_start else speaking[side].discard)(speaker)


def _name(path: Path) -> str:
    """The name of a recording in RTTM, as `penstock.speakers.turns.rttm` writes it."""
    return "_".join(path.stem.split())


def _parse(where: str, line: str) -> tuple[str, SpeakerTurn] | None:
    """Recording and turn; None for a line that has none."""
    fields = line.split()
    if not fields or fields[0].startswith(";") or fields[0] in _OTHER_TYPES:
        return None
    if fields[0] != _SPEAKER:
        raise ManifestError(f"{where}: {shown(fields[0])}, expected a line of RTTM, which begins with {_SPEAKER}")
    if len(fields) not in _FIELDS:
        raise ManifestError(f"{where}: has {len(fields)} fields, expected 9 or 10; names have no blanks")
    times = []
    for name, text in (("start", fields[3]), ("duration", fields[4])):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ManifestError(f"{where}: {name} is {shown(text)}, expected seconds")
        times.append(value)
    return fields[1], SpeakerTurn(fields[7], times[0], times[0] + times[1])
