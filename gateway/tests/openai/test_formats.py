"""Formats of a transcription, without a socket."""

import json

from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.openai.formats import TranscriptEvents, Transcription, render
from penstock_gateway.openai.request import parse_fields
from penstock_gateway.stream.events import Final


def final(number: int, text: str, texts: list[str], begin: int, **more: object) -> Final:
    """A segment whose words, each 90 ms, begin every 100 ms from the word `begin` on."""
    words = tuple(Word(each, 100 * i, 100 * i + 90, 1.0) for i, each in enumerate(texts, begin))
    return Final(number, text, words, (), 1.0, 1.0, number > 0, False, **more)  # type: ignore[arg-type]


def test_segments_of_verbose_json_end_at_pauses_and_with_sentences(streams):
    """The sentences are those of the language that the model names."""
    text = "Am 2. Oktober. Wann?"
    finals = [final(0, text, text.split(), 0, language="de-DE"), final(1, "five", ["five"], 9)]
    request = parse_fields({"response_format": ["verbose_json"]}, streams, Config())
    body = json.loads(render(Transcription(finals, 1.0), request))
    assert body["text"] == f"{text} five"
    segments = [(each["id"], each["text"], each["start"], each["end"]) for each in body["segments"]]
    assert segments == [(0, "Am 2. Oktober.", 0.0, 0.29), (1, "Wann?", 0.3, 0.39), (2, "five", 0.9, 0.99)]


def test_texts_without_spaces_are_joined_without_blanks(streams):
    first = final(0, "今日は。GPUを。", ["今", "日", "は。", "GPU", "を。"], 0)
    finals = [first, final(1, "New Yorkに", ["New", "York", "に"], 6)]
    whole, transcription = "今日は。GPUを。New Yorkに", Transcription(finals, 1.0)

    def rendered(form):
        fields = {"response_format": [form], "include[]": ["logprobs"] if form == "json" else []}
        return render(transcription, parse_fields(fields, streams, Config()))

    body = json.loads(rendered("verbose_json"))
    assert (body["text"], [each["text"] for each in body["segments"]]) == (whole, ["今日は。", "GPUを。", "New Yorkに"])
    assert "".join(token["token"] for token in json.loads(rendered("json"))["logprobs"]) == whole
    assert [line for line in rendered("srt").split("\n")[2::4]] == [whole]
    events = TranscriptEvents(has_logprobs=True)
    sent = [json.loads(events.add(each)[6:]) for each in finals]
    assert "".join(each["delta"] for each in sent) == json.loads(events.done(1.0)[6:])["text"] == whole
    assert "".join(token["token"] for each in sent for token in each["logprobs"]) == whole
