"""Speakers in the formats of `/v1/audio/transcriptions`, on a real socket."""

import json

import pytest

from gateway.tests.helpers.openai_calls import encoded, post
from penstock_gateway.http.openai_objects import speaker_name

TURNS = [(0.0, 0.2, "w0 w1", "Ada"), (0.2, 0.3, "w2", "B"), (1.5, 1.6, "w3", "B"), (1.6, 1.7, "w4", "Ada")]


async def test_diarized_json(client, streams):
    names = {"known_speaker_names[]": "Ada", "chunking_strategy": "auto", "model": "whisper-1"}
    body = (await post(client, encoded(), response_format="diarized_json", **names)).json()
    assert (body["task"], body["text"], body["duration"]) == ("transcribe", "w0 w1 w2 w3 w4", 1.7)
    assert body["usage"] == {"type": "duration", "seconds": 2}
    found = [(each["start"], each["end"], each["text"], each["speaker"]) for each in body["segments"]]
    assert found == TURNS
    assert [each["id"] for each in body["segments"]] == ["seg_0", "seg_1", "seg_2", "seg_3"]
    assert {each["type"] for each in body["segments"]} == {"transcript.text.segment"}
    assert streams.opened[0].options.speakers == "on"


async def test_turns_of_speakers_are_events_of_a_stream(client):
    names = {"known_speaker_names[]": "Ada", "stream": "true"}
    response = await post(client, encoded(), response_format="diarized_json", **names)
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data")]
    turns = [each for each in events if each["type"] == "transcript.text.segment"]
    assert [(each["start"], each["end"], each["text"], each["speaker"]) for each in turns] == TURNS
    deltas = [each["delta"] for each in events if each["type"] == "transcript.text.delta"]
    assert "".join(deltas) == events[-1]["text"] == "w0 w1 w2 w3 w4"


async def test_speakers_in_other_formats(client, streams):
    form = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"], "speakers": "2"}
    body = (await post(client, encoded(), **form)).json()
    assert [word["speaker"] for word in body["words"]] == ["A", "A", "B", "B", "A"]
    assert [(each["text"], each["speaker"]) for each in body["segments"]] == [
        ("w0 w1", "A"), ("w2", "B"), ("w3", "B"), ("w4", "A"),
    ]  # fmt: skip
    assert streams.opened[0].options.speakers == 2
    srt = await post(client, encoded(), response_format="srt", speakers="on")
    assert [line for line in srt.text.splitlines() if "w" in line] == ["A: w0 w1", "B: w2 w3", "A: w4"]
    plain = (await post(client, encoded(), response_format="verbose_json")).json()
    assert "speaker" not in plain["segments"][0]


@pytest.mark.parametrize(
    ("names", "shown"), [([], "ABCD"), (["C"], "CBDE"), (["B", "A"], "BACD"), (["D", "B", "C", "A"], "DBCA")]
)
def test_no_two_speakers_have_one_name(names, shown):
    assert [speaker_name(each, names) for each in (1, 2, 3, 4)] == list(shown)
    assert len({speaker_name(each, names) for each in range(1, 9)}) == 8
