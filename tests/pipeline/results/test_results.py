"""A request without new frames is answered with the last result, without new words and tokens."""

import tracemalloc
from dataclasses import replace

import pytest

from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.results.results import StreamText
from penstock.pipeline.results.words import Decoded, Token

STABLE, UNSTABLE = [Token(5, 0, 1, -0.1), Token(9, 2, 1, -0.2)], [Token(11, 4, 1, -0.3)]


@pytest.fixture
def text(golden_bundle) -> StreamText:
    checkpoint = golden_bundle("rnnt_hybrid")
    return StreamText(Tokenizer(checkpoint.tokenizer_path), checkpoint.config)


def test_nothing_new_is_the_last_answer_without_what_was_new(text):
    last = text.update(Decoded(STABLE, UNSTABLE, []), 8960, False)
    quiet = text.unchanged(8960)
    assert last.tokens and last.text
    assert quiet == replace(last, words=(), tokens=())
    assert text.unchanged(8960) is quiet
    assert text.update(Decoded([], UNSTABLE, []), 8960, False) == quiet


def test_a_kept_answer_ends_with_what_comes_next(text):
    before = text.unchanged(0)
    assert (before.text, before.audio_processed_s, before.is_final) == ("", 0.0, False)
    last = text.update(Decoded(STABLE, [], []), 8960, False)
    assert text.unchanged(8960).text == last.text
    assert text.unchanged(17920).audio_processed_s == 1.12
    final = text.update(Decoded([], [], []), 20000, True)
    after = text.unchanged(20000)
    assert (final.segment, final.text) == (0, last.text)
    assert (after.segment, after.text, after.audio_processed_s) == (1, "", 1.25)


def test_stable_characters_are_those_of_stable_tokens(text):
    first = text.update(Decoded(STABLE, UNSTABLE, []), 8960, False)
    assert 0 < first.stable_chars < len(first.text)
    assert text.unchanged(8960).stable_chars == first.stable_chars
    other = text.update(Decoded([], [Token(12, 5, 1, -0.1)], []), 8960, False)
    assert other.text != first.text
    assert other.text[: first.stable_chars] == first.text[: first.stable_chars]
    final = text.update(Decoded([], UNSTABLE, []), 8960, True)
    assert final.stable_chars == len(final.text)
    assert text.unchanged(8960).stable_chars == 0


def test_words_of_a_segment_of_hours_are_not_kept_without_alternatives(golden_bundle):
    checkpoint = golden_bundle("rnnt_hybrid")
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    word, count = tokenizer.encode("five"), 5000
    text = StreamText(tokenizer, checkpoint.config, has_alternatives=False)
    tracemalloc.start()
    try:
        for number in range(count):
            tokens = [Token(token, 5 * number + place, 1, -0.1) for place, token in enumerate(word)]
            result = text.update(Decoded(tokens, [], []), 8960 * number, False)
        assert len(result.words) == 1
        del tokens, result
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 40 * count
