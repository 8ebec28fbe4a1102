"""Phrases are merged, and become the tokens that a recognizer would emit for them."""

import math

import pytest

from penstock.errors import ErrorCode, StreamError, StreamErrorKind
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.boosting import phrases as phrase_tokens
from penstock.scoring.boosting.phrases import continues_word, merge_phrases, tokenize_phrases
from tests.helpers.random_models import with_piece_texts


def test_a_phrase_with_two_boosts_is_named():
    with pytest.raises(StreamError, match=r"phrase 3 \('new york'\) is given twice, with boosts 1 and 2") as caught:
        merge_phrases([("new york", 1.0), ("x", 1.0), (" new  york", 2.0)])
    assert caught.value.code is ErrorCode.PHRASES_INVALID


def test_order_spaces_and_repetition_do_not_matter():
    first = merge_phrases([("new york", 2.0), ("york city", -1.0)])
    second = merge_phrases([(" york\tcity ", -1), ("new  york", 2), ("new york", 2.0)])
    assert first == second
    assert hash(first) == hash(second)
    ((_, boost),) = merge_phrases([("a", -0.0)])
    assert math.copysign(1.0, boost) == 1.0


@pytest.fixture(scope="module")
def tokenizer(bundled_model) -> Tokenizer:
    return Tokenizer(bundled_model / "tokenizer.model")


@pytest.fixture(scope="module")
def with_bytes(golden_bundle) -> Tokenizer:
    return Tokenizer(golden_bundle("rnnt_bytes").tokenizer_path)


def rejected(phrases, tokenizer) -> str:
    with pytest.raises(StreamError) as caught:
        tokenize_phrases(merge_phrases(phrases), tokenizer)
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT
    return str(caught.value)


def test_tokens_spell_the_phrase_and_its_boost_stays(tokenizer):
    texts = ["nine", "penstock", "forty seven penstocks"]
    found = tokenize_phrases(merge_phrases((text, 1.5) for text in texts), tokenizer)
    assert sorted(tokenizer.decode(list(phrase.tokens)) for phrase in found) == sorted(texts)
    assert all(phrase.boost == 1.5 for phrase in found)
    assert len(found[-1].tokens) > 5  # no word of the training text: in pieces


def test_a_phrase_has_the_same_tokens_inside_a_text(tokenizer):
    (phrase,) = tokenize_phrases(merge_phrases([("new york", 1.0)]), tokenizer)
    inside = tokenizer.encode("in new york nine")
    places = [at for at in range(len(inside)) if tuple(inside[at : at + len(phrase.tokens)]) == phrase.tokens]
    assert len(places) == 1


def test_letters_outside_the_alphabet_are_rejected(tokenizer):
    message = rejected([("nine", 1.0), ("New Yörk", 1.0)], tokenizer)
    assert "phrase 'New Yörk' has characters outside the model's alphabet: 'N', 'Y', 'ö'" in message
    assert "for example" not in message  # lower case would not help either
    assert "for example 'new york'" in rejected([("New York", 1.0)], tokenizer)


def test_byte_pieces_write_everything(with_bytes):
    (phrase,) = tokenize_phrases(merge_phrases([("Größe 日本 🙂", 1.0)]), with_bytes)
    assert with_bytes.decode(list(phrase.tokens)) == "Größe 日本 🙂"


def test_phrases_of_the_same_tokens_have_one_boost(tokenizer):
    wide = "\uff4eine"  # a full-width n, which the tokenizer writes as n
    assert tokenizer.encode(wide) == tokenizer.encode("nine")
    assert len(tokenize_phrases(merge_phrases([("nine", 1.0), (wide, 1.0)]), tokenizer)) == 1
    assert "have the same tokens, with boosts 1 and 2" in rejected([("nine", 1.0), (wide, 2.0)], tokenizer)


def test_unknown_phrases_can_be_fitted_or_left_out(tokenizer, with_bytes):
    phrases = merge_phrases([("New Yörk", 1.0), ("東京", 1.0), ("24", 1.0), ("new york", 2.0), ("\u200b", 1.0)])
    assert tokenize_phrases(phrases, tokenizer, ignores_unknown=True) == tokenize_phrases(
        merge_phrases([("new york", 2.0)]), tokenizer
    )
    assert not tokenizer.writes_everything and tokenizer.alphabet == frozenset("abcdefghijklmnopqrstuvwxyz")
    phrases = tokenize_phrases(merge_phrases([("Größe 日本", 1.0)]), with_bytes, ignores_unknown=True)
    assert with_bytes.writes_everything and texts_of(phrases, with_bytes) == ["Größe 日本", "größe 日本"]


def test_marks_alone_are_no_phrase(tokenizer, with_bytes):
    for text in ("...", "-", "?!"):
        assert "has no words" in rejected([(text, 1.0)], tokenizer)
        assert not tokenize_phrases(merge_phrases([(text, 1.0)]), with_bytes, ignores_unknown=True)


def texts_of(phrases, tokenizer) -> list[str]:
    return [tokenizer.decode(list(phrase.tokens)) for phrase in phrases]


CAPITALS = {"\u2581" + piece: "\u2581" + piece.capitalize() for piece in ("e", "eigh", "eight", "h")}
"""Other texts for some pieces of the bundled model, which writes "Eight" then."""


@pytest.fixture(scope="module")
def with_capitals(bundled_model, tmp_path_factory) -> Tokenizer:
    return Tokenizer(with_piece_texts(bundled_model, tmp_path_factory.mktemp("capitals"), CAPITALS).tokenizer_path)


def test_all_cases_are_one_phrase_with_the_bonus_of_the_shortest(with_capitals):
    exact = tokenize_phrases(merge_phrases([("Eighteenth", 1.5)]), with_capitals)
    for given in ("eighteenth", "Eighteenth", "EIGHTEENTH"):
        found = tokenize_phrases(merge_phrases([(given, 1.5)]), with_capitals, ignores_unknown=True)
        assert sorted(texts_of(found, with_capitals)) == ["Eighteenth", "eighteenth"]  # no T, so not all in capitals
        assert set(exact) < set(found)
        totals = [phrase.boost * len(phrase.tokens) for phrase in found]
        assert totals == pytest.approx([1.5 * len(exact[0].tokens)] * 2)
    assert len(tokenize_phrases(merge_phrases([("eighteenth", 1.5)]), with_capitals)) == 1  # exactly as given


def test_a_case_that_is_in_the_list_keeps_its_boost(with_capitals):
    given = merge_phrases([("hello", -1.0), ("Hello", 2.0)])
    found = tokenize_phrases(given, with_capitals, ignores_unknown=True)
    signs = {text: phrase.boost > 0 for text, phrase in zip(texts_of(found, with_capitals), found, strict=True)}
    assert signs == {"hello": False, "Hello": True}


def test_small_letters_alone_take_no_more_memory(tokenizer):
    small = tokenize_phrases(merge_phrases([("forty seven penstocks", 1.5)]), tokenizer)
    for given in ("forty seven penstocks", "FORTY Seven penstocks"):
        assert tokenize_phrases(merge_phrases([(given, 1.5)]), tokenizer, ignores_unknown=True) == small


def test_the_tokens_of_a_list_are_limited(tokenizer, monkeypatch):
    monkeypatch.setattr(phrase_tokens, "MAX_TOKENS", 3)
    assert tokenize_phrases(merge_phrases([("nine", 1.0), ("seven", 1.0), ("one", 1.0)]), tokenizer)
    message = rejected([("nine", 1.0), ("seven", 1.0), ("one", 1.0), ("two", 1.0)], tokenizer)
    assert "4 phrases of 4 tokens together; accepted: up to 3 tokens" in message


def test_letters_continue_a_word_and_spaces_and_marks_end_it():
    class Pieces:
        pieces = ("e", " nine", " ", "é", "\u0301", "7", ",", "'s", "-", "", b"\xc3", " ⁇ ", "日")
        size = len(pieces)

        def piece(self, token):
            return self.pieces[token]

    carried_on = {
        piece for piece, carries_on in zip(Pieces.pieces, continues_word(Pieces()), strict=True) if carries_on
    }
    assert carried_on == {"e", "é", "\u0301", "7", b"\xc3", "日"}
