"""Score: what all utterances of one pass add up to. Audio without speech is counted apart, never in the WER."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.evaluation.confidence import Interval, bootstrap_interval
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.word_errors import EditCounts, UtteranceErrors, total


@dataclass(frozen=True)
class SpeechScore:
    """Utterances in which somebody speaks."""

    utterances: int
    audio_s: float
    words: EditCounts
    characters: EditCounts
    interval: Interval | None
    """95 % of the WER, over utterances."""


@dataclass(frozen=True)
class SpeechFreeScore:
    """Recordings whose reference is empty."""

    utterances: int
    audio_s: float
    heard: list[tuple[str, int]]
    """Words heard there, all of them inserted, with how often; the most frequent first."""

    @property
    def inserted_words(self) -> int:
        """How many."""
        return sum(count for _, count in self.heard)

    @property
    def inserted_words_per_minute(self) -> float | None:
        """None without such recordings."""
        return 60 * self.inserted_words / self.audio_s if self.audio_s else None


@dataclass(frozen=True)
class Confusions:
    """Words that go wrong in speech, the most frequent first; each with how often."""

    substituted: list[tuple[tuple[str, str], int]]
    """((reference word, hypothesis word), count)"""
    deleted: list[tuple[str, int]]
    inserted: list[tuple[str, int]]


@dataclass(frozen=True)
class Score:
    """One pass over the utterances that were recognised."""

    speech: SpeechScore
    speech_free: SpeechFreeScore
    confusions: Confusions
    speakers: dict[str, EditCounts]
    """Word errors of each speaker that is named; the worst first."""


def summarise(utterances: Sequence[Utterance], errors: Sequence[UtteranceErrors]) -> Score:
    """Adds up the errors of each of the utterances."""
    pairs = list(zip(utterances, errors, strict=True))
    spoken = [(utterance, error) for utterance, error in pairs if error.reference]
    silent = [(utterance, error) for utterance, error in pairs if not error.reference]
    return Score(
        _speech_score(spoken),
        SpeechFreeScore(
            len(silent),
            sum(utterance.audio_s for utterance, _ in silent),
            _by_frequency(Counter(word for _, error in silent for word in error.inserted)),
        ),
        _confusions([error for _, error in spoken]),
        _speakers(spoken),
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


def _confusions(errors: list[UtteranceErrors]) -> Confusions:
    return Confusions(
        substituted=_by_frequency(Counter(pair for error in errors for pair in error.substituted)),
        deleted=_by_frequency(Counter(word for error in errors for word in error.deleted)),
        inserted=_by_frequency(Counter(word for error in errors for word in error.inserted)),
    )


def _by_frequency(counter: Counter) -> list:
    """Like `most_common`, but those of equal count in alphabetical order."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _speakers(spoken: list[tuple[Utterance, UtteranceErrors]]) -> dict[str, EditCounts]:
    speakers: dict[str, EditCounts] = {}
    for utterance, error in spoken:
        if utterance.speaker is not None:
            speakers[utterance.speaker] = speakers.get(utterance.speaker, EditCounts()) + error.words
    return dict(sorted(speakers.items(), key=lambda item: (-(item[1].rate or 0.0), item[0])))
