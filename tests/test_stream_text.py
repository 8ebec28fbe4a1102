"""What a stream is told when a request brought nothing: what it was told before, without the news."""

from dataclasses import replace

import pytest

from penstock.stages.decoder_lanes import Decoded
from penstock.stages.stream_text import StreamText
from penstock.tokenizer import Tokenizer
from penstock.transcript import Token

STABLE, UNSTABLE = [Token(5, 0, 1, -0.1), Token(9, 2, 1, -0.2)], [Token(11, 4, 1, -0.3)]


@pytest.fixture
def text(golden_bundle) -> StreamText:
    checkpoint = golden_bundle("rnnt_hybrid")
    return StreamText(Tokenizer(checkpoint.tokenizer_path), checkpoint.config)


def test_nothing_new_is_the_last_answer_without_its_news(text):
    told = text.update(Decoded(STABLE, UNSTABLE, []), 8960, False)
    quiet = text.unchanged(8960)
    assert told.tokens and told.text
    assert quiet == replace(told, words=(), tokens=())
    assert text.unchanged(8960) is quiet
    assert text.update(Decoded([], UNSTABLE, []), 8960, False) == quiet


def test_a_kept_answer_ends_with_what_comes_next(text):
    before = text.unchanged(0)
    assert (before.text, before.audio_processed_s, before.is_final) == ("", 0.0, False)
    told = text.update(Decoded(STABLE, [], []), 8960, False)
    assert text.unchanged(8960).text == told.text
    assert text.unchanged(17920).audio_processed_s == 1.12
    final = text.update(Decoded([], [], []), 20000, True)
    after = text.unchanged(20000)
    assert (final.segment, final.text) == (0, told.text)
    assert (after.segment, after.text, after.audio_processed_s) == (1, "", 1.25)
