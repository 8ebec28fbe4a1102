"""Masked words: the file, and whole words in partial and final texts whose length and stable part stay."""

import pytest

from penstock_common.results import Alternative, Word
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.masks import MAX_WORDS, WordMasks

LINES = "\ufeffdamn\nde: Mist # a comment\n\n# none\npt-BR: merda\ncan't\nstra\u00dfe\nहिन्दी\n"
MASKS = WordMasks.parse(LINES.encode())


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Damn, damned (damn)", "en-US", "D***, damned (d***)"),
        ("damn's DAMN-it 'damn'", "en-US", "d***'s D***-it 'd***'"),
        ("Can\u2019t cant", "en-US", "C**** cant"),
        ("Mist merda", "de-DE", "M*** merda"),
        ("Mist merda", "pt-BR", "Mist m****"),
        ("Mist merda", "pt-PT", "Mist merda"),
        ("Mist merda", "", "M*** m****"),
        ("STRASSE Straße", "de", "S****** S*****"),
        ("हिन्दी में", "hi", "ह***** में"),
    ],
)
def test_whole_words_are_masked(text, language, expected):
    assert MASKS.event(Partial(0, text, 0, (), 1.0), language).text == expected
    assert len(expected) == len(text)


@pytest.mark.parametrize(("stable_chars", "expected"), [(0, 0), (2, 0), (3, 3), (7, 3), (8, 8), (11, 8)])
def test_the_last_word_of_a_partial_text_may_change(stable_chars, expected):
    words = (Word("oh", 0, 1), Word("damn", 1, 2))
    event = MASKS.event(Partial(0, "oh, damn it", stable_chars, words, 1.0), "en")
    assert (event.text, event.stable_chars) == ("oh, d*** it", expected)
    assert [word.text for word in event.words] == ["oh", "d***"]


def test_alternatives_of_a_final_text_are_masked():
    final = Final(0, "damn", (), (Alternative("damn dam", -1.0, (Word("damn", 0, 1),)),), 1.0, 1.0, True, False)
    event = MASKS.event(final, "en")
    assert (event.text, event.alternatives[0].text, event.alternatives[0].words[0].text) == ("d***", "d*** dam", "d***")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# nothing", "it has no word"),
        (b"ok\ndamn it", "line 2 is 'damn it'; accepted: WORD or LANGUAGE: WORD"),
        (b"(a|b)", r"line 1 is '\(a\|b\)'"),
        (b"de:", "line 1 is 'de:'"),
        (b"german: mist", "line 1 is 'german: mist'"),
        ("\u65e5\u672c".encode(), "line 1"),
        ("m\u00e4h".encode("latin-1"), "'utf-8' codec can't decode"),
        ("mist".encode("utf-16"), "'utf-8' codec can't decode"),
        ("\n".join(f"w{i}" for i in range(MAX_WORDS + 1)).encode(), "more than 10,000"),
    ],
)
def test_a_wrong_file_is_rejected_by_line(content, message):
    with pytest.raises(ValueError, match=message):
        WordMasks.parse(content)
