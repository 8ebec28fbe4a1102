"""Edit counts against a plain edit distance, sums over utterances, and the bootstrap interval."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.evaluation.errors import EditCounts, Score, bootstrap_interval, compare, summarize
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.normalizers import BASIC, NONE, Normalizer
from tests.helpers.reference.edit_distance import edit_distance

WORDS = st.lists(st.sampled_from(["a", "b", "eight", "eighty", "naïve", "'s"]), max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_edits_are_minimal_and_those_counted(reference, hypothesis):
    errors = compare(reference, hypothesis)
    assert errors.words.edits == edit_distance(reference.split(), hypothesis.split())
    assert errors.characters.edits == edit_distance(reference, hypothesis)
    assert errors.words.reference_units == len(reference.split())
    assert errors.characters.reference_units == len(reference)
    words = errors.words
    assert len(errors.substituted) == words.substitutions
    assert (len(errors.deleted), len(errors.inserted)) == (words.deletions, words.insertions)
    assert all(reference != hypothesis for reference, hypothesis in errors.substituted)
    in_reference = sorted(reference.split())
    for word in [*errors.deleted, *(substituted for substituted, _ in errors.substituted)]:
        in_reference.remove(word)
    in_hypothesis = sorted(hypothesis.split())
    for word in [*errors.inserted, *(substitute for _, substitute in errors.substituted)]:
        in_hypothesis.remove(word)
    assert in_reference == in_hypothesis, "what is left is equal"


@pytest.mark.parametrize(
    ("reference", "hypothesis", "words", "edits"),
    [
        ("enter one oh f\u00f3ur", "enter one oh fo\u0301ur", 4, 0),
        ("今日は GPUを使う。", "今日 はGPUを使う。", 7, 0),
        ("今日はいい天気", "今日は良い天気", 7, 1),
        ("สวัสดี ครับ", "สวัสดีคับ", 7, 2),
        ("말 했다", "말했다", 2, 2),
    ],
)
def test_words_are_those_of_the_recognizer(reference, hypothesis, words, edits):
    """In NFC, and in scripts without spaces a character each with its marks."""
    for name in (NONE, BASIC):
        errors = compare(reference, hypothesis, Normalizer(name))
        assert (errors.words.reference_units, errors.words.edits) == (words, edits)


def utterance(reference: str, speaker: str | None = None, audio_s: float = 2.0) -> Utterance:
    return Utterance(Path("a.wav"), audio_s, reference, Path("m.jsonl"), 1, speaker)


def score(*pairs: tuple[Utterance, str]) -> Score:
    return summarize([u for u, _ in pairs], [compare(u.reference, text) for u, text in pairs])


def test_audio_without_speech_is_not_in_the_error_rate():
    speech = (utterance("one two three four"), "one two three")
    silent = [(utterance("", "somebody", 10.0), "four four oh"), (utterance(" ", audio_s=20.0), "")]
    alone, mixed = score(speech), score(speech, *silent)
    assert mixed == replace(alone, speech_free=mixed.speech_free)
    assert mixed.speech.words.rate == 0.25
    assert (mixed.speech_free.utterances, mixed.speech_free.audio_s) == (2, 30.0)
    assert mixed.speech_free.inserted_words_per_minute == pytest.approx(6.0)
    assert mixed.speech_free.inserted == [("four", 2), ("oh", 1)]
    assert alone.speech_free.inserted_words_per_minute is None


def test_the_worst_come_first_and_ties_are_in_order():
    result = score(
        (utterance("b b x", "good"), "b b x"),
        (utterance("b x b", "bad"), "p x p"),
        (utterance("a x", "bad"), "e x"),
        (utterance("c x d x", "worst"), "x x"),
        (utterance("x", "worst"), "y z x y"),
    )
    assert result.substituted == [(("b", "p"), 2), (("a", "e"), 1)]
    assert result.deleted == [("c", 1), ("d", 1)]
    assert result.inserted == [("y", 2), ("z", 1)]
    assert list(result.speakers) == ["worst", "bad", "good"]
    assert result.speakers["bad"] == EditCounts(substitutions=3, reference_units=5)


def test_the_interval_is_deterministic_and_contains_the_rate():
    draw = np.random.default_rng(3)
    edits, units = draw.integers(0, 4, 60).tolist(), draw.integers(3, 12, 60).tolist()
    low, high = bootstrap_interval(edits, units)
    assert bootstrap_interval(edits, units) == (low, high)
    assert low < sum(edits) / sum(units) < high


def test_the_interval_is_that_of_independent_errors():
    """2,000 utterances of 10 words, each word wrong with probability 0.1: deviation sqrt(0.1 * 0.9 / 20000)."""
    edits = np.random.default_rng(1).binomial(10, 0.1, 2000)
    low, high = bootstrap_interval(edits.tolist(), [10] * 2000)
    assert high - low == pytest.approx(2 * 1.96 * (0.1 * 0.9 / 20000) ** 0.5, rel=0.1)
