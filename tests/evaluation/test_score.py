"""Sums over utterances: speech apart from audio without speech, speakers, the order of what goes wrong."""

from pathlib import Path

import pytest

from penstock.evaluation.manifest import Utterance
from penstock.evaluation.score import Score, summarise
from penstock.evaluation.word_errors import EditCounts, compare


def utterance(reference: str, speaker: str | None = None, audio_s: float = 2.0) -> Utterance:
    return Utterance(Path("a.wav"), audio_s, reference, Path("m.jsonl"), 1, speaker)


def score(*pairs: tuple[Utterance, str]) -> Score:
    return summarise([u for u, _ in pairs], [compare(u.reference, text) for u, text in pairs])


def test_audio_without_speech_is_not_in_the_error_rate():
    speech = (utterance("one two three four"), "one two three")
    silent = [(utterance("", "somebody", 10.0), "four four oh"), (utterance(" ", audio_s=20.0), "")]
    alone, mixed = score(speech), score(speech, *silent)
    assert mixed.speech == alone.speech
    assert (mixed.confusions, mixed.speakers) == (alone.confusions, {})
    assert mixed.speech.words.rate == 0.25
    assert (mixed.speech_free.utterances, mixed.speech_free.audio_s) == (2, 30.0)
    assert mixed.speech_free.inserted_words_per_minute == pytest.approx(6.0)
    assert mixed.speech_free.heard == [("four", 2), ("oh", 1)]
    assert alone.speech_free.inserted_words_per_minute is None


def test_without_any_speech():
    only_silent = score((utterance("", audio_s=60.0), "a"))
    assert only_silent.speech.words.rate is None
    assert only_silent.speech.interval is None
    assert only_silent.speech_free.inserted_words_per_minute == 1.0


def test_the_rate_is_over_words_not_over_utterances():
    speech = score((utterance("a"), "b"), (utterance("a b c d e f g h i"), "a b c d e f g h i")).speech
    assert (speech.words, speech.words.rate, speech.audio_s) == (EditCounts(1, 0, 0, 10), 0.1, 4.0)


def test_the_worst_come_first_and_ties_are_in_order():
    result = score(
        (utterance("b b x", "good"), "b b x"),
        (utterance("b x b", "bad"), "p x p"),
        (utterance("a x", "bad"), "e x"),
        (utterance("c x d x", "worst"), "x x"),
        (utterance("x", "worst"), "y z x y"),
    )
    assert result.confusions.substituted == [(("b", "p"), 2), (("a", "e"), 1)]
    assert result.confusions.deleted == [("c", 1), ("d", 1)]
    assert result.confusions.inserted == [("y", 2), ("z", 1)]
    assert list(result.speakers) == ["worst", "bad", "good"]
    assert result.speakers["bad"] == EditCounts(substitutions=3, reference_units=5)
