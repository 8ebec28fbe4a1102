import pytest

from penstock_common.results import Alternative, Word
from penstock_gateway.riva.call import is_answer, offline_result, streaming_result
from penstock_gateway.riva.request_mapping import ResultFormat
from penstock_gateway.stream.events import Final, Partial

FORM = ResultFormat(language="en-US", max_alternatives=1, has_words=True)
WORDS = (Word("market", 480, 800, 0.75), Word("street", 800, 1200, 0.5))


def final(text="market street", words=WORDS, alternatives=(), forced=False, is_last=False):
    return Final(0, text, words, alternatives, 2.5, 1.5, is_last, forced)


def test_an_interim_result():
    result = streaming_result(Partial(0, "market str", 7, WORDS[:1], 1.125), FORM)
    (alternative,) = result.alternatives
    assert alternative.transcript == "market str"
    assert not alternative.words and not alternative.confidence
    assert (result.is_final, result.channel_tag, result.audio_processed) == (False, 1, 1.125)
    assert result.stability == pytest.approx(0.7)


def test_a_final_result():
    result = streaming_result(final(), FORM)
    (alternative,) = result.alternatives
    assert alternative.transcript == "market street "  # clients join them
    assert alternative.confidence == 0.5
    assert list(alternative.language_code) == ["en-US"]
    found = [(word.word, word.start_time, word.end_time, word.confidence) for word in alternative.words]
    assert found == [("market", 480, 800, 0.75), ("street", 800, 1200, 0.5)]
    assert (result.is_final, result.stability, result.audio_processed) == (True, 1.0, 2.5)


def test_a_transcript_of_a_script_without_spaces_ends_with_none():
    assert streaming_result(final("今日は。"), FORM).alternatives[0].transcript == "今日は。"


def test_words_only_where_they_were_asked_for():
    form = ResultFormat("", 1, has_words=False)
    (alternative,) = streaming_result(final(), form).alternatives
    assert not alternative.words and not alternative.language_code
    assert alternative.confidence == 0.5


def test_alternatives_keep_their_order():
    others = tuple(Alternative(text, -1.0, (Word(text, 0, 80, 0.25),)) for text in ("market street", "mark it", "or"))
    form = ResultFormat("en-US", 2, has_words=True)
    first, second = offline_result(final(alternatives=others), form).alternatives
    assert (first.transcript, second.transcript) == ("market street ", "mark it ")
    assert len(first.words) == 2 and not second.words  # as in Riva, only the first has words
    assert second.confidence == 0.25


def test_a_word_whose_server_sends_no_confidence_has_all():
    (alternative,) = streaming_result(final("hi", words=(Word("hi", 0, 80),)), FORM).alternatives
    assert alternative.confidence == alternative.words[0].confidence == 1.0


def test_an_empty_segment_is_an_answer_only_to_a_forced_end():
    assert is_answer(final())
    assert is_answer(final(text="", words=(), forced=True))
    assert not is_answer(final(text="", words=(), is_last=True))
    assert streaming_result(final(text="", words=(), forced=True), FORM).alternatives[0].transcript == ""
