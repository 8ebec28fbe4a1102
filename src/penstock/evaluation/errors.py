"""Word and character errors of utterances, and their sums over a run with a confidence interval.

The alignment is jiwer's, of texts after a `Normalizer`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import Normalizer
from penstock_common.writing import split_words

RESAMPLES = 2000
SEED = 0
_LOW_PERCENT, _HIGH_PERCENT = 2.5, 97.5


@dataclass(frozen=True)
class EditCounts:
    """Edits that turn references into hypotheses; the unit is a word or a character."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference_units: int = 0

    def __add__(self, other: "EditCounts") -> "EditCounts":
        return EditCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def edits(self) -> int:
        """All edits."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Edits per reference unit: WER or CER. None without references."""
        return self.edits / self.reference_units if self.reference_units else None


@dataclass(frozen=True)
class UtteranceErrors:
    """One utterance's hypothesis against its reference."""

    reference: str
    """The normalized reference."""
    hypothesis: str
    words: EditCounts
    characters: EditCounts
    """White space between words counts as characters."""
    aligned: tuple[tuple[str, str], ...] = ()
    """(reference word, hypothesis word) in order; "" stands for the word that is missing."""

    @property
    def substituted(self) -> list[tuple[str, str]]:
        """(reference word, hypothesis word)"""
        return [(word, found) for word, found in self.aligned if word and found and word != found]

    @property
    def deleted(self) -> list[str]:
        """Words of the reference alone."""
        return [word for word, found in self.aligned if not found]

    @property
    def inserted(self) -> list[str]:
        """Words of the hypothesis alone."""
        return [found for word, found in self.aligned if not word]


NO_NORMALIZER = Normalizer()


def compare(reference: str, hypothesis: str, normalizer: Normalizer = NO_NORMALIZER) -> UtteranceErrors:
    """Aligns an utterance's texts after the normalizer. With an empty reference every word is an insertion.

    Words are those of the recognizer: in scripts without spaces each character with its marks.
    """
    reference, hypothesis = normalizer(reference), normalizer(hypothesis)
    import jiwer  # optional (extra `evaluate`)

    found = jiwer.process_words(" ".join(split_words(reference)), " ".join(split_words(hypothesis)))
    (reference_words,), (hypothesis_words,), (chunks,) = found.references, found.hypotheses, found.alignments
    aligned = tuple(
        pair
        for chunk in chunks
        for pair in zip_longest(
            reference_words[chunk.ref_start_idx : chunk.ref_end_idx],
            hypothesis_words[chunk.hyp_start_idx : chunk.hyp_end_idx],
            fillvalue="",
        )
    )
    characters = _counts(jiwer.process_characters(reference, hypothesis))
    return UtteranceErrors(reference, hypothesis, _counts(found), characters, aligned)


def total(counts: Iterable[EditCounts]) -> EditCounts:
    """The sum of counts."""
    return sum(counts, EditCounts())


def _counts(aligned: Any) -> EditCounts:
    return EditCounts(
        aligned.substitutions,
        aligned.deletions,
        aligned.insertions,
        aligned.hits + aligned.substitutions + aligned.deletions,
    )


class Interval(NamedTuple):
    """A 95 % confidence interval of a rate."""

    low: float
    high: float


def bootstrap_interval(edits: Sequence[int], reference_units: Sequence[int]) -> Interval | None:
    """95 % percentile interval of sum(edits) / sum(reference_units) over utterances drawn with replacement.

    Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", 2004. Deterministic.
    Utterances count as independent, so speakers with many utterances make it too narrow. None without utterances;
    every utterance must have reference units.
    """
    return interval_of(bootstrap_rates(edits, reference_units)) if len(edits) else None


def interval_of(rates: np.ndarray) -> Interval:
    """The interval of `bootstrap_rates`."""
    low, high = np.percentile(rates, [_LOW_PERCENT, _HIGH_PERCENT])
    return Interval(float(low), float(high))


def bootstrap_rates(edits: Sequence[int], reference_units: Sequence[int]) -> np.ndarray:
    """sum(edits) / sum(reference_units) of RESAMPLES samples of the utterances, float64."""
    errors, units = np.asarray(edits, np.float64), np.asarray(reference_units, np.float64)
    draw, rates = np.random.default_rng(SEED), np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        chosen = draw.integers(len(errors), size=len(errors))
        rates[i] = errors[chosen].sum() / units[chosen].sum()
    return rates


@dataclass(frozen=True)
class SpeechScore:
    """Utterances with a non-empty reference."""

    utterances: int
    audio_s: float
    words: EditCounts
    characters: EditCounts
    interval: Interval | None
    """95 % confidence interval of the WER, over utterances."""


@dataclass(frozen=True)
class SpeechFreeScore:
    """Recordings with an empty reference. They are counted apart, never in the WER."""

    utterances: int
    audio_s: float
    inserted: list[tuple[str, int]]
    """(inserted word, count), most frequent first."""

    @property
    def inserted_words(self) -> int:
        """Number of inserted words."""
        return sum(count for _, count in self.inserted)

    @property
    def inserted_words_per_minute(self) -> float | None:
        """None without such recordings."""
        return 60 * self.inserted_words / self.audio_s if self.audio_s else None


@dataclass(frozen=True)
class Score:
    """All recognized utterances of one run."""

    speech: SpeechScore
    speech_free: SpeechFreeScore
    substituted: list[tuple[tuple[str, str], int]]
    """((reference word, hypothesis word), count) in speech, most frequent first."""
    deleted: list[tuple[str, int]]
    inserted: list[tuple[str, int]]
    speakers: dict[str, EditCounts]
    """Word edits of each named speaker, worst first."""


def summarize(utterances: Sequence[Utterance], errors: Sequence[UtteranceErrors]) -> Score:
    """Adds up the errors of all utterances."""
    pairs = list(zip(utterances, errors, strict=True))
    spoken = [(utterance, error) for utterance, error in pairs if error.reference]
    silent = [(utterance, error) for utterance, error in pairs if not error.reference]
    inserted_in_silence = _by_frequency(word for _, error in silent for word in error.inserted)
    return Score(
        speech=_speech_score(spoken),
        speech_free=SpeechFreeScore(len(silent), sum(each.audio_s for each, _ in silent), inserted_in_silence),
        substituted=_by_frequency(pair for _, error in spoken for pair in error.substituted),
        deleted=_by_frequency(word for _, error in spoken for word in error.deleted),
        inserted=_by_frequency(word for _, error in spoken for word in error.inserted),
        speakers=_speakers(spoken),
    )


def _speech_score(spoken: list[tuple[Utterance, UtteranceErrors]]) -> SpeechScore:
    words = [error.words for _, error in spoken]
    return SpeechScore(
        utterances=len(spoken),
        audio_s=sum(utterance.audio_s for utterance, _ in spoken),
        words=total(words),
        characters=total(error.characters for _, error in spoken),
        interval=bootstrap_interval([count.edits for count in words], [count.reference_units for count in words]),
    )


def _by_frequency(errors: Iterable[Any]) -> list[tuple[Any, int]]:
    """Each with its count, the most frequent first, ties in alphabetical order."""
    return sorted(Counter(errors).items(), key=lambda item: (-item[1], item[0]))


def _speakers(spoken: list[tuple[Utterance, UtteranceErrors]]) -> dict[str, EditCounts]:
    speakers: dict[str, EditCounts] = {}
    for utterance, error in spoken:
        if utterance.speaker is not None:
            speakers[utterance.speaker] = speakers.get(utterance.speaker, EditCounts()) + error.words
    return dict(sorted(speakers.items(), key=lambda item: (-(item[1].rate or 0.0), item[0])))
