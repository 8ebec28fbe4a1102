"""Texts, words and their frames against NeMo's `transcribe(timestamps=True)`, also of a model that writes marks."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

from penstock.model.tokenizer import Tokenizer
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.models import oracle_model, speech
from tests.helpers.recognition import recognize_alone

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["tdt_marks", "tdt_hybrid", "tdt_gaps", "rnnt_characters"])
def test_words_and_their_frames(name: str):
    one, words, marks = oracle_model(name), 0, 0
    frame_ms = one.checkpoint.config.encoder_frame_ms
    tokenizer = Tokenizer(one.checkpoint.tokenizer_path)
    for context in one.contexts:
        recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=1)
        for samples in speech():
            one.model.encoder.set_default_att_context_size(list(context))
            (hypothesis,) = one.model.transcribe([samples], timestamps=True, verbose=False)
            result = recognize_alone(recognizer, samples)
            tokens = [token.id for token in result.tokens]
            if tokens[0] in tokenizer.marks:  # NeMo's text begins with it
                continue
            found = [(text, start / frame_ms, end / frame_ms) for text, start, end, _ in result.words]
            theirs = [each for each in hypothesis.timestamp["word"] if each["word"]]
            # A word of NeMo keeps the blank before a mark, which its text has not.
            expected = [(each["word"].replace(" ", ""), each["start_offset"], each["end_offset"]) for each in theirs]
            assert found == expected
            assert result.text == hypothesis.text.strip(" ")
            words, marks = words + len(found), marks + len(tokenizer.marks.intersection(tokens))
    assert words > 10 and (marks > 10) == (name == "tdt_marks")
