"""OpenAI's protocol without a socket: client events in, actions and server events out."""

from dataclasses import replace

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from gateway.tests.helpers.realtime_events import append, send, update
from penstock_common.audio.pcm import RawFormat
from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.realtime.dialect import END_SEGMENT, Configure
from penstock_gateway.realtime.protocol import RealtimeProtocol
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.options import LiveStreamOptions

ITEM = "conversation.item.input_audio_transcription"
INTERIM = "item.input_audio_transcription.interim"


def word(text, start_ms, end_ms, confidence=0.5):
    return Word(text, start_ms, end_ms, confidence)


def partial(text, stable=None, words=(), processed_s=1.0, segment=0):
    return Partial(segment, text, len(text) if stable is None else stable, tuple(words), processed_s)


def final(text, end_s=2.0, words=(), forced=False, is_last=False, segment=0):
    return Final(segment, text, tuple(words), (), end_s, end_s, is_last, forced)


def kinds(events):
    return [event["type"].removeprefix("conversation.item.").removeprefix("input_audio_") for event in events]


def configured(actions):
    return next(action for action in actions if isinstance(action, Configure))


def test_the_first_event_shows_the_session(protocol):
    (created,) = protocol.dialect.opened()
    assert created["type"] == "session.created"
    assert created["session"]["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": {"model": "fake-asr", "language": "en-US"},
        "noise_reduction": None,
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 800},
    }


def test_an_item_from_its_first_word_to_its_completion(protocol):
    append(protocol)
    words = [word("one", 400, 700), word("two", 800, 1000)]
    started, delta = protocol.dialect.result(partial("one", words=words[:1]))
    assert (started["type"], started["audio_start_ms"]) == ("input_audio_buffer.speech_started", 400)
    assert (delta["type"], delta["delta"]) == (f"{ITEM}.delta", "one")
    assert protocol.dialect.result(partial("one")) == []
    done = protocol.dialect.result(final("one two", end_s=1.5, words=words))
    assert kinds(done) == ["transcription.delta", "buffer.speech_stopped", "buffer.committed", "added",
                           "transcription.completed"]  # fmt: skip
    assert done[0]["delta"] == " two"
    assert done[1]["audio_end_ms"] == 1500
    assert done[2]["previous_item_id"] is None
    assert done[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert (done[4]["transcript"], done[4]["usage"]) == ("one two", {"type": "duration", "seconds": 1.5})
    item = started["item_id"]
    assert {event.get("item_id", event.get("item", {}).get("id")) for event in [delta, *done]} == {item}
    following = protocol.dialect.result(final("three", end_s=4.0, segment=1))
    committed = following[kinds(following).index("buffer.committed")]
    assert committed["previous_item_id"] == item != committed["item_id"]
    assert following[-1]["usage"]["seconds"] == 2.5


def test_names_of_events_are_unique(protocol):
    append(protocol)
    events = [
        *protocol.dialect.opened(),
        *protocol.dialect.result(partial("one")),
        *protocol.dialect.result(final("one two")),
    ]
    assert len({event["event_id"] for event in events}) == len(events)


def test_deltas_bring_stable_text_only_and_add_up_to_the_transcript(protocol):
    append(protocol)
    texts = [("on", 0), ("one t", 3), ("one tree", 4), ("one three f", 9), ("one three", 9)]
    events = [event for text, stable in texts for event in protocol.dialect.result(partial(text, stable))]
    events += protocol.dialect.result(final("one three four"))
    deltas = [event["delta"] for event in events if event["type"] == f"{ITEM}.delta"]
    assert deltas == ["one", " ", "three", " four"]


def test_interim_text_is_an_extension(protocol):
    update(protocol, include=[INTERIM])
    append(protocol)
    events = [
        event
        for args in [("on", 0), ("one tw", 3), ("one two", 3)]
        for event in protocol.dialect.result(partial(*args))
    ]
    shown = [(event["delta"], event["interim"], event["audio_end_ms"]) for event in events if "delta" in event]
    assert shown == [("", "on", 1000), ("one", " tw", 1000), ("", " two", 1000)]


def test_silence_between_words_is_no_item(protocol):
    append(protocol)
    assert protocol.dialect.result(final("")) == []


def test_without_turn_detection_only_a_commit_ends_an_item(protocol):
    actions = update(protocol, turn_detection=None)
    assert configured(actions).options.endpoint_silence_ms == 0
    assert actions[-1]["session"]["audio"]["input"]["turn_detection"] is None
    append(protocol)
    assert kinds(protocol.dialect.result(partial("one"))) == ["transcription.delta"]
    assert send(protocol, "input_audio_buffer.commit") == [END_SEGMENT]
    done = protocol.dialect.result(final("one", forced=True))
    assert kinds(done) == ["buffer.committed", "added", "transcription.completed"]


@pytest.mark.parametrize("detection", [None, {"type": "server_vad"}])
def test_a_commit_of_silence_is_answered(protocol, detection):
    update(protocol, turn_detection=detection)
    append(protocol)
    send(protocol, "input_audio_buffer.commit")
    done = protocol.dialect.result(final("", forced=True))
    assert kinds(done) == ["buffer.committed", "added", "transcription.completed"]
    assert done[-1]["transcript"] == ""


def test_every_commit_has_an_item_of_its_own_also_behind_an_endpoint(protocol):
    append(protocol)
    send(protocol, "input_audio_buffer.commit")
    append(protocol)
    send(protocol, "input_audio_buffer.commit")
    events = [*protocol.dialect.result(final("one")), *protocol.dialect.result(final("", forced=True))]
    events += protocol.dialect.result(final("two", forced=True))
    assert [event["transcript"] for event in events if "transcript" in event] == ["one", "", "two"]


def test_clear_discards_what_was_not_committed(protocol):
    append(protocol)
    send(protocol, "input_audio_buffer.commit")
    append(protocol)
    ended, cleared = send(protocol, "input_audio_buffer.clear")
    assert (ended, cleared["type"]) == (END_SEGMENT, "input_audio_buffer.cleared")
    append(protocol)
    assert protocol.dialect.result(final("kept", forced=True))[-1]["transcript"] == "kept"
    assert protocol.dialect.result(partial("dropped")) == []
    assert protocol.dialect.result(final("dropped")) == []
    assert protocol.dialect.result(final("dropped", forced=True)) == []
    assert protocol.dialect.result(final("new"))[-1]["transcript"] == "new"


def test_clear_without_audio_is_answered(protocol):
    assert kinds(send(protocol, "input_audio_buffer.clear")) == ["buffer.cleared"]


@pytest.mark.parametrize(
    ("form", "raw", "shown"),
    [
        ({"type": "audio/pcm", "rate": 24000}, RawFormat("s16le", 24000), {"type": "audio/pcm", "rate": 24000}),
        ({"type": "audio/pcm"}, RawFormat("s16le", 24000), {"type": "audio/pcm", "rate": 24000}),
        ({"type": "audio/pcm", "rate": 8000}, RawFormat("s16le", 8000), {"type": "audio/pcm", "rate": 8000}),
        ({"type": "audio/pcmu"}, RawFormat("mulaw", 8000), {"type": "audio/pcmu"}),
        ({"type": "audio/pcma"}, RawFormat("alaw", 8000), {"type": "audio/pcma"}),
    ],
)
def test_formats(protocol, form, raw, shown):
    actions = update(protocol, format=form)
    assert configured(actions).audio == raw
    assert actions[-1]["session"]["audio"]["input"]["format"] == shown


@pytest.mark.parametrize(
    ("detection", "silence_ms"),
    [
        ({"type": "server_vad"}, 800),
        ({"type": "server_vad", "silence_duration_ms": 500, "threshold": 0.5, "prefix_padding_ms": 300}, 500),
        ({"type": "server_vad", "silence_duration_ms": 50}, 200),
        ({"type": "server_vad", "silence_duration_ms": 20_000}, 10_000),
        ({"type": "semantic_vad"}, 800),
        ({"type": "semantic_vad", "eagerness": "high"}, 500),
        ({"type": "semantic_vad", "eagerness": "low"}, 1200),
    ],
)
def test_turn_detection_is_shown_as_it_is_done(protocol, detection, silence_ms):
    actions = update(protocol, turn_detection=detection)
    assert configured(actions).options.endpoint_silence_ms == silence_ms
    shown = actions[-1]["session"]["audio"]["input"]["turn_detection"]
    assert shown == {"type": "server_vad", "silence_duration_ms": silence_ms}


def test_an_update_changes_only_the_fields_it_has(protocol):
    keywords = ["rubout", "24/7"]  # the model cannot write the second one
    update(protocol, {"model": "whisper-1", "keywords": keywords, "language": "en"}, turn_detection=None)
    actions = update(protocol, format={"type": "audio/pcmu"}, noise_reduction={"type": "near_field"})
    assert configured(actions).options == LiveStreamOptions(
        model="fake-asr", phrases=(("rubout", 1.5), ("24/7", 1.5)), endpoint_silence_ms=0
    )
    shown = actions[-1]["session"]["audio"]["input"]
    assert shown["noise_reduction"] is None
    assert shown["transcription"] == {"model": "fake-asr", "language": "en", "keywords": ["rubout"]}
    assert actions[-1]["penstock_ignored"] == ["audio.input.noise_reduction", "keywords '24/7'"]


def test_a_session_update_that_changes_nothing_leaves_the_stream_alone(protocol):
    update(protocol)
    assert kinds(update(protocol, include=[INTERIM])) == ["session.updated"]


def test_times_go_on_when_new_settings_begin_a_new_stream(protocol):
    append(protocol)
    protocol.dialect.result(final("one", end_s=2.0))
    assert configured(update(protocol, {"keywords": ["rubout"]}))
    protocol.dialect.result(final("two", end_s=5.0, is_last=True))
    append(protocol)
    started, _ = protocol.dialect.result(partial("three", words=[word("three", 300, 600)]))
    assert started["audio_start_ms"] == 5300
    assert protocol.dialect.result(final("three", end_s=1.0))[-1]["usage"]["seconds"] == 1.0


def test_delay_picks_the_context():
    streams = FakeStreams()
    base = streams.groups[0]
    streams.groups = tuple(
        replace(base, name=name, chunk_ms=chunk_ms)
        for name, chunk_ms in [("fake-asr", 560.0), ("low", 160.0), ("high", 1120.0)]
    )
    streams.group = lambda model: next(group for group in streams.groups if model in ("", group.name))
    for delay, model in [("minimal", "low"), ("low", "low"), ("medium", "fake-asr"), ("xhigh", "high")]:
        actions = update(RealtimeProtocol(streams, Config()), {"delay": delay})
        assert configured(actions).options.model == model
        assert actions[-1]["session"]["audio"]["input"]["transcription"]["model"] == model
        assert "penstock_ignored" not in actions[-1]


@pytest.mark.parametrize(("name", "value"), [("delay", "minimal"), ("language", "fr")])
def test_values_without_an_effect_are_named_and_not_shown(name, value):
    streams = FakeStreams()
    streams.groups = (replace(streams.groups[0], detected_languages=()),)
    updated = update(RealtimeProtocol(streams, Config()), {name: value})[-1]
    assert updated["penstock_ignored"] == [f"{name} {value!r}"]
    assert updated["session"]["audio"]["input"]["transcription"] == {"model": "fake-asr", "language": "en-US"}
    (error,) = update(RealtimeProtocol(streams, Config(strict=True)), {name: value})
    assert error["error"]["param"] == f"session.audio.input.transcription.{name}"


def test_a_configuration_without_endpoints_starts_without_turn_detection():
    protocol = RealtimeProtocol(FakeStreams(), Config(endpoint_silence_ms=0))
    assert protocol.dialect.opened()[0]["session"]["audio"]["input"]["turn_detection"] is None


def test_log_probabilities_of_words(protocol):
    update(protocol, include=["item.input_audio_transcription.logprobs"])
    append(protocol)
    completed = protocol.dialect.result(final("eight à", words=[word("eight", 0, 1, 0.25), word("à", 1, 2, 0.0)]))[-1]
    first, second = completed["logprobs"]
    assert first == {"token": "eight", "logprob": -1.3863, "bytes": [101, 105, 103, 104, 116]}
    assert (second["token"], second["bytes"]) == (" à", [32, 195, 160])
    assert second["logprob"] == -13.8155


def test_turns_of_speakers_are_events_of_an_item(protocol):
    actions = update(protocol, {"speakers": 2}, include=["item.input_audio_transcription.words"])
    assert configured(actions).options.speakers == 2
    assert actions[-1]["session"]["audio"]["input"]["transcription"]["speakers"] == 2
    append(protocol)
    words = [Word("a", 100, 200, 0.5, 1), Word("b", 200, 300, 0.5, 1), Word("c", 300, 400, 0.5, 2)]
    *_, first, second, completed = protocol.dialect.result(final("a b c", words=words))
    assert kinds([first, second, completed]) == ["transcription.segment"] * 2 + ["transcription.completed"]
    assert (first["start"], first["end"], first["speaker"], first["text"]) == (0.1, 0.3, "A", "a b")
    assert (second["start"], second["end"], second["speaker"], second["text"]) == (0.3, 0.4, "B", "c")
    assert first["item_id"] == completed["item_id"] and first["id"] != second["id"]
    assert completed["words"][2] == {"word": "c", "start": 0.3, "end": 0.4, "confidence": 0.5, "speaker": "B"}
    assert configured(update(protocol, {"speakers": "off"})).options.speakers is None


def test_a_lost_stream_fails_the_item_and_the_commits_that_wait(protocol):
    append(protocol)
    (_, delta) = protocol.dialect.result(partial("one"))
    for _ in range(2):
        append(protocol)
        send(protocol, "input_audio_buffer.commit")
    events = protocol.dialect.failed(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone"))
    assert kinds(events) == ["transcription.failed", "transcription.failed"]
    assert kinds(protocol.dialect.failed(GatewayError(GatewayCode.AUDIO_INVALID, "samples are not finite"))) == [
        "error"
    ]
    assert events[0]["item_id"] == delta["item_id"] != events[1]["item_id"]
    assert events[0]["error"] == {
        "type": "server_error", "code": "stream_lost", "message": "the replica is gone", "param": None
    }  # fmt: skip
