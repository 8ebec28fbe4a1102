"""Client events of OpenAI's dialect that are wrong: errors name the field, and nothing is taken."""

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from gateway.tests.helpers.realtime_events import append, error, send, update
from penstock_common.audio.pcm import RawFormat
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError
from penstock_gateway.realtime.dialect import END_SEGMENT, AppendAudio
from penstock_gateway.realtime.protocol import RealtimeProtocol

INTERIM = "item.input_audio_transcription.interim"


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"type": "realtime"}, "session.type"),
        ({"audio": []}, "session.audio"),
        ({"audio": {"input": {"input_audio_format": "pcm16"}}}, "session.audio.input.input_audio_format"),
        ({"audio": {"input": {"format": {"type": "audio/opus"}}}}, "session.audio.input.format.type"),
        ({"audio": {"input": {"format": {"rates": 8000}}}}, "session.audio.input.format.rates"),
        ({"audio": {"input": {"format": {"rate": 44100}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 16000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"transcription": {"model": "nothing"}}}}, "model"),
        ({"audio": {"input": {"transcription": {"language": "fr"}}}}, "session.audio.input.transcription.language"),
        ({"audio": {"input": {"transcription": {"keywords": "a"}}}}, "session.audio.input.transcription.keywords"),
        ({"audio": {"input": {"transcription": {"keywords": ["a", " "]}}}},
         "session.audio.input.transcription.keywords[1]"),
        ({"audio": {"input": {"transcription": {"keywords": ["a"] * 2001}}}},
         "session.audio.input.transcription.keywords"),
        *(({"audio": {"input": {"transcription": {name: each}}}}, f"session.audio.input.transcription.{name}")
          for name, each in (*(("speakers", each) for each in (1, 9, True, "two", [])), ("numbers", "ja"))),
        ({"output_audio_format": "pcm16"}, "session.output_audio_format"),
        ({f"f{i}": 1 for i in range(40)}, "session.f32"),
    ],
)  # fmt: skip
def test_a_wrong_field_that_changes_words_is_named_and_no_audio_is_taken(protocol, session, param):
    found = error(send(protocol, "session.update", session=session, event_id="client_7"))
    assert (found["type"], found["param"], found["event_id"]) == ("invalid_request_error", param, "client_7")
    assert "accepted: " in found["message"]
    assert error(append(protocol))["param"] == param
    update(protocol)
    assert append(protocol) == [AppendAudio(bytes(4800))]


@pytest.mark.parametrize(
    ("session", "ignored"),
    [
        ({"voice": "alloy", "tools": ["a"], "tracing": None, "audio": {"output": {"speed": 1}}},
         ["voice", "tools", "tracing", "audio.output"]),
        ({"audio": {"input": {"transcription": {"delay": "none", "prompt": "a"}}}},
         ["audio.input.transcription.delay", "audio.input.transcription.prompt"]),
        ({"deliberate": 1, "audio": {"information": "a"}}, ["deliberate", "audio.information"]),
        ({"audio": {"input": {"turn_detection": 5}}}, ["audio.input.turn_detection"]),
        ({"audio": {"input": {"turn_detection": {"type": "vad", "silence_duration": 3, "threshold": 0.5}}}},
         ["audio.input.turn_detection.silence_duration", "audio.input.turn_detection.type",
          "audio.input.turn_detection.threshold"]),
        ({"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": 1}}}},
         ["audio.input.turn_detection.eagerness"]),
        ({"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 50}}}},
         ["session.audio.input.turn_detection.silence_duration_ms"]),
        ({"include": ["logprobs", INTERIM]}, ["include.0"]),
        ({"temperature": 0, "turnDetection": None}, ["temperature", "turnDetection"]),
        ({"audio": {"input": {"transcription": {"prompts": ""}, "turn_detection": {"create_response": False}}}},
         ["audio.input.transcription.prompts"]),
    ],
)  # fmt: skip
def test_other_wrong_fields_are_named_and_what_is_right_counts(protocol, session, ignored):
    session.setdefault("audio", {}).setdefault("input", {})["format"] = {"type": "audio/pcmu"}
    configure, updated = send(protocol, "session.update", session=session)
    assert (configure.audio, sorted(updated["penstock_ignored"])) == (RawFormat("mulaw", 8000, 1), sorted(ignored))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"noise_reduction": {"type": "near_field"}}, "session.audio.input.noise_reduction"),
        ({"transcription": {"prompt": "letters"}}, "session.audio.input.transcription.prompt"),
        *(({"turn_detection": {name: value}}, f"session.audio.input.turn_detection.{name}")
          for name, value in [("threshold", 0.9), ("prefix_padding_ms", 300), ("idle_timeout_ms", 6000),
                              ("create_response", True), ("interrupt_response", True), ("eagerness", "low")]),
        ({"turn_detection": {"type": "semantic_vad", "silence_duration_ms": 300}},
         "session.audio.input.turn_detection.silence_duration_ms"),
    ],
)  # fmt: skip
def test_fields_without_an_effect_are_errors_of_a_strict_gateway(protocol, fields, param):
    assert update(protocol, **fields)[-1]["type"] == "session.updated"
    strict = RealtimeProtocol(FakeStreams(), Config(strict=True))
    wrong = error(update(strict, **fields))
    assert wrong["param"] == param
    assert "is unknown" not in wrong["message"]
    assert update(strict, noise_reduction=None, transcription={"prompt": ""})[-1]["type"] == "session.updated"


@pytest.mark.parametrize(("name", "value"), [("temperature", 0), ("turnDetection", None), ("sampleRate", 0)])
def test_an_unknown_field_is_an_error_of_a_strict_gateway_also_where_it_is_empty(name, value):
    strict = RealtimeProtocol(FakeStreams(), Config(strict=True))
    wrong = error(update(strict, **{name: value}))
    assert (wrong["param"], "is unknown" in wrong["message"]) == (f"session.audio.input.{name}", True)


BETA = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": "whisper-1"}}
RETIRED = [
    *(("transcription_session.update", fields, "transcription_session.update", "session.update with session.audio.")
      for fields in ({}, {"session": {}}, {"session": None}, {"session": 5}, {"session": BETA},
                     {"session": {"turn_detection": None}}, {"session": {"type": "transcription", "audio": {}}})),
    *(("session.update", {"session": {"type": "transcription", "audio": {}, name: value}}, f"session.{name}",
       f"session.audio.input.{current}")
      for name, value, current in [("input_audio_format", "pcm16", "format"), ("input_audio_format", "opus", "format"),
                                   ("input_audio_transcription", {"model": "whisper-1"}, "transcription"),
                                   ("input_audio_noise_reduction", None, "noise_reduction"),
                                   ("turn_detection", None, "turn_detection")]),
    *(("session.update", fields, "model", "session.audio.input.transcription.model")
      for fields in ({"model": "fake-asr"}, {"model": 5}, {"model": "", "session": {}})),
    *(("input_audio_buffer.commit", {"final": value}, "final", "session.update") for value in (True, False, "yes")),
]  # fmt: skip


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize(("kind", "fields", "param", "current"), RETIRED)
def test_a_retired_shape_ends_the_connection_and_the_error_names_the_current_one(
    protocol, kind, fields, param, current, has_begun
):
    if has_begun:
        append(protocol)
    with pytest.raises(GatewayError) as caught:
        send(protocol, kind, **fields, event_id="client_7")
    found = error([protocol.rejected(caught.value)])
    assert (found["code"], found["param"], found["event_id"]) == ("shape_retired", param, "client_7")
    assert found["message"].startswith(f"{param} is ") and current in found["message"].partition("accepted: ")[2]


@pytest.mark.parametrize(
    "message", ["", "no", "[]", "3", '{"type": 5}', '{"type": "response.create"}', "[" * 99999, b'{"type": 5}']
)
def test_a_message_that_is_no_event_is_an_error(protocol, message):
    found = error(protocol.receive(message))
    assert found["type"] == "invalid_request_error"
    assert found["message"].startswith(f"{found['param']} is ")


def test_a_binary_message_is_audio_of_the_format_of_the_session(protocol):
    configured, audio = protocol.receive(b"{\xff\xfe")
    assert (configured.audio.sample_rate_hz, audio) == (24_000, AppendAudio(b"{\xff\xfe"))
    assert [action for action in protocol.receive(b'{"type": "input_audio_buffer.commit"}')] == [END_SEGMENT]


@pytest.mark.parametrize("wrong", [{"language": "fr"}, {"model": "nothing"}, {"keywords": [" "]}])
def test_a_wrong_field_of_a_later_update_leaves_the_session_as_it_was(protocol, wrong):
    """But audio of another form would be read wrongly."""
    update(protocol, {"keywords": ["rubout"]})
    assert error(update(protocol, wrong))["param"]
    assert append(protocol) == [AppendAudio(bytes(4800))]
    assert "200" in error(update(protocol, {"keywords": ["a" * 201]}))["message"]  # known to no field's type
    assert append(protocol) == [AppendAudio(bytes(4800))]
    assert error(update(protocol, format={"rate": 44100})) and error(append(protocol))


@pytest.mark.parametrize("audio", [None, 5, "a", "a===", "####", "é", "AAAA\n"])
def test_audio_that_is_not_base64_is_an_error(protocol, audio):
    assert error(send(protocol, "input_audio_buffer.append", audio=audio))["param"] == "audio"
    assert error(send(protocol, "input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"
