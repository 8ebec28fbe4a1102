"""Rows that tell their client nothing new get no entry in a reply of `asr_batch`."""

from penstock.pipeline.results import StreamResult
from penstock.pipeline.words import Token, Word
from penstock.serving.news import NewsFilter


def result(text: str, segment: int = 0, is_final: bool = False, words: tuple = (), tokens: tuple = ()) -> StreamResult:
    return StreamResult(segment, text, is_final, 1.0, words, tokens)


def test_only_what_changes_is_news():
    news = NewsFilter(2)
    word, token = Word("ten", 0, 1), Token(1, 2, 1, 0.0)
    history = [
        (result(""), False),
        (result("te"), True),
        (result("te"), False),
        (result("te", tokens=(token,)), True),
        (result("ten", words=(word,)), True),
        (result("ten"), False),
        (result("ten", is_final=True), True),
        (result("", segment=1), False),
        (result("", segment=1, is_final=True), True),
    ]
    for place, (one, is_news) in enumerate(history):
        assert news.news(1, place == 0, [one]) == [one] * is_news, place


def test_a_slot_forgets_its_last_stream():
    news = NewsFilter(2)
    assert news.news(0, True, [result("ten")])
    assert news.news(0, True, [result("ten")])
    assert not news.news(0, False, [result("ten")])
    assert not news.news(1, True, [result("")])


def test_results_of_one_request_are_compared_one_after_the_other():
    news = NewsFilter(1)
    ends = [result("ten", is_final=True), result("", segment=1)]
    assert news.news(0, True, ends) == ends[:1]
    more = [result("one", segment=1, is_final=True), result("two", segment=2)]
    assert news.news(0, False, more) == more
