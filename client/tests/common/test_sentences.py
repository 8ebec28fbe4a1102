"""Ends of sentences: a table of five languages, other scripts, and what is not known."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_common import sentences as module
from penstock_common.results import Word
from penstock_common.sentences import sentences
from penstock_common.writing import join_texts, split_words

TABLE = Path(__file__).parent / "data" / "sentences.tsv"
LANGUAGES = ["", "auto", "en", "en-US", "de_DE", "ja", "zh-Hant", "xx", "tlh", "no such"]


def found(text, language=""):
    words = [Word(each, 0, 1) for each in split_words(text) if each]
    return [join_texts(word.text for word in part) for part in sentences(words, language)]


def wrong():
    """The languages and the sentences whose ends are not right."""
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert Counter(language for language, _ in rows) == dict.fromkeys(("en", "de", "fr", "es", "it"), 12)
    expected = ((language, text.split(" | ")) for language, text in rows)
    return [(language, parts) for language, parts in expected if found(" ".join(parts), language) != parts]


def test_sentences_end_where_a_native_ends_them():
    assert len(wrong()) <= 3, wrong()


def test_marks_and_rules_decide_without_the_library(monkeypatch):
    monkeypatch.setattr(module, "get_sentence_boundaries", None)
    assert len(wrong()) <= 6, wrong()


@pytest.mark.parametrize(
    ("text", "language", "parts"),
    [
        ("Г. Петров ушёл. Да.", "ru", ["Г. Петров ушёл.", "Да."]),
        ("今日は。GPUを使う\uff01はい", "auto", ["今日は。", "GPUを使う\uff01", "はい"]),
        ("وہ آیا\u06d4 وہ گیا\u06d4", "ur", ["وہ آیا\u06d4", "وہ گیا\u06d4"]),
        ("so this is it. next one? last", "en", ["so this is it.", "next one?", "last"]),
        ("We met Mr. Lee. 「はい。」 Ça va ? Oui.", "", ["We met Mr. Lee.", "「はい。」", "Ça va ?", "Oui."]),
        ("What the f***? D*** it. Go", "en", ["What the f***?", "D*** it.", "Go"]),
    ],
)
def test_other_languages_scripts_and_masks(text, language, parts):
    assert found(text, language) == parts


@given(st.lists(st.text(st.sampled_from("aZ5.?!…»\"'„“¿-。、ก́😀"), max_size=4)), st.sampled_from(LANGUAGES))
def test_every_word_is_in_one_sentence(texts, language):
    words = [Word(text, 0, 1) for text in texts]
    parts = sentences(words, language)
    assert [word for part in parts for word in part] == words and all(parts)
