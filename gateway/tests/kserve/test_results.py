"""What a request is answered with, for rows with and without new results."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.tests.helpers.fake_streams import GROUP
from penstock_client import Answer, StreamResult, Word
from penstock_gateway.kserve.model import DATATYPES
from penstock_gateway.kserve.sequences import RequestResults

FIRST, CHUNK, REST = 7880, 8960, 40
"""Samples of the chunks of context [70,6]; the last window reaches 40 samples beyond its hop."""
GROUP_WITH_CHUNKS = replace(GROUP, parameters={"first_chunk_samples": str(FIRST), "chunk_samples": str(CHUNK)})
CONFIG = Path(__file__).parents[3] / "model_repository" / "asr" / "config.pbtxt"


def result(segment, text, processed_s=1.0, is_final=False, **more):
    words = (Word(text, 0, 80, 0.5),)
    return StreamResult(segment, text, is_final, processed_s, words, (len(text),), (3,), **more)


@pytest.fixture
def results():
    return RequestResults(GROUP_WITH_CHUNKS)


def test_a_request_without_changes_repeats_the_text(results):
    assert [(one.segment, one.text, one.is_final) for one in results.pop()] == [(0, "", False)]
    results.add(Answer(FIRST, [result(0, "one", stable_chars=2, language="en-US")]))
    assert results.pop() == [result(0, "one", stable_chars=2, language="en-US")]
    (again,) = results.pop()
    assert (again.text, again.stable_chars, again.language) == ("one", 2, "en-US")
    assert (again.new_words, again.new_tokens, again.new_timestamps) == ((), (), ())


def test_audio_counts_as_processed_also_in_silence(results):
    expected = {0: 0, FIRST - 1: 0, FIRST: FIRST - REST, FIRST + CHUNK: FIRST + CHUNK - REST}
    for samples, processed in expected.items():
        results.add(Answer(samples, []))
        assert results.pop()[0].audio_processed_s == processed / 16_000
    border, end = FIRST + CHUNK, FIRST + CHUNK + 100  # the end of a segment moves no border
    results.add(Answer(end, [result(0, "", end / 16_000, True, answers_finalize=True)]))
    results.pop()
    for samples, processed in {border + CHUNK - 1: end, border + CHUNK: border + CHUNK - REST}.items():
        results.add(Answer(samples, []))
        (now,) = results.pop()
        assert (now.segment, now.audio_processed_s) == (1, processed / 16_000)


def test_the_rows_of_a_request_have_one_entry_for_each_segment(results):
    results.add(Answer(FIRST, [result(0, "one", 0.5)]))
    results.add(Answer(FIRST + CHUNK, [result(0, "two", 1.0), result(0, "three", 1.0, True)]))
    results.add(Answer(FIRST + 2 * CHUNK, []))
    final, now = results.pop()
    assert (final.text, final.is_final) == ("three", True)
    assert [word.text for word in final.new_words] == ["one", "two", "three"]
    assert (final.new_tokens, final.new_timestamps) == ((3, 3, 5), (3, 3, 3))
    assert (now.segment, now.text, now.is_final) == (1, "", False)
    assert now.audio_processed_s == (FIRST + 2 * CHUNK - REST) / 16_000
    assert results.pop() == [now]


def test_without_known_chunks_only_results_tell_what_is_processed():
    results = RequestResults(GROUP)
    results.add(Answer(5000, []))
    assert results.pop()[0].audio_processed_s == 0


def test_the_outputs_are_those_of_asr():
    _, _, outputs = CONFIG.read_text(encoding="utf-8").partition("output [")
    found = re.findall(r'name: "(\w+)", data_type: TYPE_(\w+)', outputs)
    of_server = [(name, kind.replace("STRING", "BYTES")) for name, kind in found]
    assert list(DATATYPES.items()) == [*of_server, ("WORD_SPEAKER", "INT32")]
