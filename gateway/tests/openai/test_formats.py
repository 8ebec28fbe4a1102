"""Formats of a transcription, without a socket."""

import json

import pytest

from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.openai.formats import TranscriptEvents, Transcription, render
from penstock_gateway.openai.request import parse_fields
from penstock_gateway.stream.events import Final


def test_segments_of_verbose_json_end_at_pauses_and_with_sentences(streams):
    words = tuple(Word(text, 100 * i, 100 * i + 90, 1.0) for i, text in enumerate(["One", "two.", "Three?", "Four"]))
    finals = [Final(0, "One two. Three? Four", words, (), 1.0, 1.0, False, False)]
    finals.append(Final(1, "five", (Word("five", 900, 990, 1.0),), (), 1.0, 1.0, True, False))
    request = parse_fields({"response_format": ["verbose_json"]}, streams, Config())
    body = json.loads(render(Transcription(finals, 1.0), request))
    assert body["text"] == "One two. Three? Four five"
    segments = [(each["id"], each["text"], each["start"], each["end"]) for each in body["segments"]]
    assert segments == [
        (0, "One two.", 0.0, 0.19),
        (1, "Three?", 0.2, 0.29),
        (2, "Four", 0.3, 0.39),
        (3, "five", 0.9, 0.99),
    ]


@pytest.mark.parametrize("language, sentences", [("de-DE", 2), ("", 3)])
def test_segments_have_the_sentences_of_their_language(streams, language, sentences):
    """That the model names, else of the request's, here English; a segment of verbose_json is one, a cue may be two."""
    text = "Am 3. Oktober kam er. Er blieb."
    words = tuple(Word(each, 100 * i, 100 * i + 90, 1.0) for i, each in enumerate(text.split()))
    transcription = Transcription([Final(0, text, words, (), 1.0, 1.0, True, False, language=language)], 1.0)
    body, srt = (
        render(transcription, parse_fields({"response_format": [form]}, streams, Config()))
        for form in ("verbose_json", "srt")
    )
    assert len(json.loads(body)["segments"]) == sentences
    assert srt.split("\n")[2:] == [text, ""]


def test_texts_without_spaces_are_joined_without_blanks(streams):
    texts = (["今", "日", "は。", "GPU", "を。"], ["New", "York", "に"])
    starts = [0, 6]
    finals = [
        Final(
            i,
            text,
            tuple(Word(each, 100 * j, 100 * j + 90, 1.0) for j, each in enumerate(words, starts[i])),
            (),
            1.0,
            1.0,
            i > 0,
            False,
        )
        for i, (words, text) in enumerate(zip(texts, ["今日は。GPUを。", "New Yorkに"], strict=True))
    ]
    whole, transcription = "今日は。GPUを。New Yorkに", Transcription(finals, 1.0)

    def rendered(form):
        fields = {"response_format": [form], "include[]": ["logprobs"] if form == "json" else []}
        return render(transcription, parse_fields(fields, streams, Config()))

    body = json.loads(rendered("verbose_json"))
    assert (body["text"], [each["text"] for each in body["segments"]]) == (whole, ["今日は。", "GPUを。", "New Yorkに"])
    assert "".join(token["token"] for token in json.loads(rendered("json"))["logprobs"]) == whole
    assert [line for line in rendered("srt").split("\n")[2::4]] == [whole]
    events = TranscriptEvents(has_logprobs=True)
    sent = [json.loads(events.add(final)[6:]) for final in finals]
    assert "".join(each["delta"] for each in sent) == json.loads(events.done(1.0)[6:])["text"] == whole
    assert "".join(token["token"] for each in sent for token in each["logprobs"]) == whole
