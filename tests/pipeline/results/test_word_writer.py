"""Tokens are dealt to words by their spellings, also where one spelling begins another."""

import pytest

from penstock.pipeline.stream_decoders.wfst import WordWriter
from tests.helpers.decoding_graphs import Arc, make_graph

SPELLINGS = {"A": [[0], [0, 1]], "B": [[1, 2], [2]], "C": [[3]]}
A, B, C = 1, 2, 3


@pytest.fixture
def writer() -> WordWriter:
    return WordWriter(make_graph([Arc(0, 4, 0, 0.0, 0)], {0: 0.0}, 4, SPELLINGS))


@pytest.mark.parametrize(
    ("tokens", "words", "texts", "known"),
    [
        ([], [], [], 0),
        ([0], [], [""], 0),
        ([0, 1], [A], [" A", ""], 0),
        ([0, 3], [A, C], [" A", " C"], 1),
        ([0, 1, 2, 3], [A, B, C], [" A", "", " B", " C"], 3),
        ([0, 1, 2, 1, 2, 3], [A, B, B, C], [" A", "", " B", " B", "", " C"], 5),
        ([0, 1], [A, B], [" A", " B"], 1),
        ([3, 3, 0], [C, C], [" C", " C", ""], 1),
    ],
)
def test_texts_of_tokens(writer, tokens, words, texts, known):
    assert writer.texts(tokens, words, is_final=False) == (texts, known)
    assert writer.texts(tokens, words, is_final=True) == (texts, len(tokens))


def test_a_path_of_thousands_of_words(writer):
    assert writer.texts([3] * 3000, [C] * 3000, is_final=True) == ([" C"] * 3000, 3000)


def test_spellings_that_begin_others_take_no_time():
    writer = WordWriter(make_graph([Arc(0, 4, 0, 0.0, 0)], {0: 0.0}, 4, {"A": [[0], [0, 0]], "B": [[1]]}))
    assert writer.texts([0] * 90, [A] * 90, is_final=True) == ([" A"] * 90, 90)
    assert writer.texts([0] * 90 + [2], [A] * 60 + [B], is_final=True)[0].count(" A") == 60, "no spellings fit"
