"""Figures in final results: words with times, confidence and speakers; partial text, tokens and other streams stay."""

import numpy as np
import pytest

from penstock import StreamingRecognizer
from penstock.frontend.audio_file import read_audio
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.results.figures import figures_of
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.words import Word
from penstock.pipeline.stages.decoder_figures import FigurePlaces
from tests.helpers.golden import AN4

pytestmark = pytest.mark.usefixtures("uncompiled")
SPOKEN = "on may twenty fifth nineteen seventy one yes"
WORDS = tuple(Word(text, 300 * i, 300 * i + 200, 0.9 - 0.1 * i) for i, text in enumerate(SPOKEN.split()))


def rewritten(rules: str = "en", words: tuple[Word, ...] = WORDS, **more: object) -> list[StreamResult]:
    """A partial result with four words and a final one, rewritten beside a stream that asks for nothing."""
    places, slots = FigurePlaces(), np.array([4, 2])
    places.use(2, rules)
    partial = StreamResult(0, "on may twenty fifth", False, 3.0, words[:4], (), stable_chars=19)
    last = StreamResult(0, SPOKEN, True, 3.0, words[4:], (), stable_chars=len(SPOKEN), **more)  # type: ignore[arg-type]
    answers: list[dict] = [{0: WORDS, 1: each} for each in (partial, last)]
    for each in answers:
        places.rewrite(slots, each)
        assert each[0] is WORDS
    return [each[1] for each in answers]


def test_a_figure_has_the_times_and_the_least_confidence_of_its_words():
    partial, last = rewritten()
    assert (partial.text, partial.words, partial.stable_chars) == ("on may twenty fifth", (), 0)
    assert last.text == "on may 25th 1971 yes" and last.stable_chars == len(last.text)
    assert [word.text for word in last.words] == last.text.split()
    assert last.words[2:4] == (
        Word("25th", 600, WORDS[3].end_ms, WORDS[3].confidence),
        Word("1971", 1200, WORDS[6].end_ms, WORDS[6].confidence),
    )
    assert (last.words[0], last.words[-1]) == (WORDS[0], WORDS[-1])


def test_a_number_is_of_one_speaker_and_has_no_pause():
    last = rewritten(word_speakers=(1, 1, 1, 1, 2, 2, 3, 3))[1]
    assert (last.text, last.word_speakers) == ("on may 25th 1970 one yes", (1, 1, 1, 2, 3, 3))
    for pause_ms, text in ((500, "on may 25th 1971 yes"), (501, "on may 20 fifth 1971 yes")):
        later = [word._replace(start_ms=word.start_ms + pause_ms - 100, end_ms=9000) for word in WORDS[3:]]
        assert rewritten(words=(*WORDS[:3], *later))[1].text == text


def test_alternatives_are_written_alike_and_keep_their_scores():
    given = (Alternative(SPOKEN, -1.0, -2.0, WORDS, (1,) * 8), Alternative("on may", -3.0, -4.0, WORDS[:2]))
    last = rewritten(alternatives=given)[1]
    first, second = last.alternatives
    assert (first.text, first.words, first.speakers, first.score) == (last.text, last.words, (1,) * 5, -1.0)
    assert second == given[1]


def test_the_tag_of_each_segment_chooses_the_rules():
    for tag, text in (("en-US", "on may 25th 1971 yes"), ("", SPOKEN), ("ja-JP", SPOKEN)):
        last = rewritten("auto", language=tag)[1]
        assert (last.text, [word.text for word in last.words]) == (text, text.split())


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    return StreamingRecognizer(bundled_model, max_streams=2)


SAMPLES = np.concatenate([read_audio(path, 16_000) for path in sorted((AN4 / "flac").glob("*.flac"))[:3]])


def recognized(recognizer: StreamingRecognizer, **options: object) -> list[StreamResult]:
    """The results of a stream whose client ends a segment every 3 s."""
    with recognizer.open_stream(options=options) as stream:
        parts = np.split(SAMPLES, range(16_000, len(SAMPLES), 16_000))
        answers = [(stream.finalize if i % 3 == 2 else stream.push)(part) for i, part in enumerate(parts[:-1])]
        answers.append(stream.finish(parts[-1]))
    return [entry for answer in answers for entry in answer.entries]


@pytest.mark.parametrize(
    "options", [{}, {"decoder": "alsd", "n_best": 3}, {"decoder": "ctc", "endpoint_silence_ms": 400}], ids=str
)
def test_figures_of_a_stream_are_those_of_its_words(recognizer, options):
    """With ends by the client and by pauses, also inside numbers."""
    spoken = recognized(recognizer, **options)
    written = recognized(recognizer, **options, numbers="en")
    assert [entry.tokens for entry in written] == [entry.tokens for entry in spoken]
    assert not any(entry.words or entry.stable_chars for entry in written if not entry.is_final)
    words: list[Word] = []
    changed = 0
    for before, after in zip(spoken, written, strict=True):
        words += before.words
        if not before.is_final:
            assert after.text == before.text
            continue
        assert after.text == " ".join(word.text for word in after.words)
        assert {word.start_ms for word in after.words} <= {word.start_ms for word in words}
        assert after.words[-1:] == () or after.words[-1].end_ms == words[-1].end_ms
        assert [each.score for each in after.alternatives] == [each.score for each in before.alternatives]
        assert all(each.text == figures_of(each.text, "en") for each in after.alternatives)
        changed += after.text != before.text
        words = []
    assert changed
    assert recognized(recognizer, **options, numbers="words") == spoken  # after a stream with figures


def test_numbers_change_with_the_end_of_a_segment(recognizer):
    texts = []
    with recognizer.open_stream(options={"numbers": "en"}) as stream:
        for numbers in ("words", "en"):
            texts.append(stream.finalize(SAMPLES, options={"numbers": numbers}).text)
        texts.append(stream.finish(SAMPLES).text)
    assert [text == figures_of(text, "en") for text in texts] == [True, False, True]


def test_figures_are_the_servers_default_by_the_language_of_the_models_card(bundled_model):
    recognizer = StreamingRecognizer(bundled_model, decoding=DecodingConfig(numbers="figures"))
    results = (recognized(recognizer, **given) for given in ({"numbers": "words"}, {}))
    spoken, written = ([entry.text for entry in each if entry.is_final] for each in results)
    assert written == [figures_of(text, "en") for text in spoken] != spoken
