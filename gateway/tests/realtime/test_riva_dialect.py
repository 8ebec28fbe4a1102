"""Riva's Realtime dialect without a socket."""

import base64
from dataclasses import replace

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from gateway.tests.helpers.realtime_events import error, send
from penstock_common.audio.pcm import RawFormat
from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.realtime.dialect import END_SEGMENT, FINISH, AppendAudio, Configure
from penstock_gateway.realtime.protocol import RealtimeProtocol
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.options import LiveStreamOptions

ITEM = "conversation.item.input_audio_transcription"
AUDIO = base64.b64encode(b"abcd").decode()


@pytest.fixture
def protocol():
    return RealtimeProtocol(FakeStreams(), Config(), is_riva=True)


def update(protocol, **session):
    return send(protocol, "transcription_session.update", session=session, event_id="client_1")


def append(protocol, **fields):
    return send(protocol, "input_audio_buffer.append", audio=AUDIO, **fields)


def final(text, words=(), is_last=False, forced=False):
    return Final(0, text, tuple(words), (), 1.0, 1.0, is_last, forced)


def test_a_token_of_the_handshake_chooses_the_dialect_and_its_first_event(protocol):
    (created,) = protocol.dialect.opened()
    assert created["type"] == "conversation.created"
    assert created["conversation"]["object"] == "realtime.conversation"


def test_the_first_client_event_chooses_the_dialect():
    protocol = RealtimeProtocol(FakeStreams(), Config())
    assert protocol.dialect.opened()[0]["type"] == "session.created"
    configure, updated = update(protocol, input_audio_params={}, turn_detection=None)
    assert (configure.audio, updated["penstock_ignored"]) == (RawFormat("s16le", 16_000), ["turn_detection"])


def test_fields_of_the_beta_have_no_effect_and_are_named():
    protocol = RealtimeProtocol(FakeStreams(), Config())
    beta = {"turn_detection": {"type": "server_vad"}, "input_audio_noise_reduction": {}, "include": []}
    configure, updated = update(protocol, input_audio_format="pcm16", recognition_config={}, **beta)
    assert configure == append(RealtimeProtocol(FakeStreams(), Config(), is_riva=True))[0]
    assert updated["penstock_ignored"] == list(beta)
    strict = RealtimeProtocol(FakeStreams(), Config(strict=True), is_riva=True)
    assert error(update(strict, **beta))["param"] == "session.turn_detection"


def test_a_language_that_the_model_does_not_name_is_not_shown():
    streams = FakeStreams()
    streams.groups = (replace(streams.groups[0], detected_languages=()),)
    protocol = RealtimeProtocol(streams, Config(), is_riva=True)
    updated = update(protocol, input_audio_transcription={"language": "fr"})[-1]
    assert updated["penstock_ignored"] == ["language 'fr'"]
    assert updated["session"]["input_audio_transcription"]["language"] == "en-US"


def test_words_have_the_tag_of_their_speaker(protocol):
    configure, _ = update(protocol, speaker_diarization={"enable_speaker_diarization": True, "max_speaker_count": 2})
    assert configure.options.speakers == 2
    (completed,) = protocol.dialect.result(final("one", [Word("one", 120, 480, 0.5, speaker=2)]))
    assert completed["words_info"]["words"][0]["speaker_tag"] == 2


def test_the_session_becomes_the_options_of_a_stream(protocol):
    configure, updated = update(
        protocol,
        id="sess_1",
        client_secret={"value": "ek_1"},
        input_audio_format="none",
        input_audio_transcription={"language": "en-US", "model": "fake-asr", "prompt": ""},
        input_audio_params={"sample_rate_hz": 8000, "num_channels": 2},
        recognition_config={"max_alternatives": 3, "enable_word_time_offsets": True,
                            "custom_configuration": "lm_weight:0.3,enable_vad_endpointing:true"},
        speaker_diarization={"enable_speaker_diarization": False, "max_speaker_count": 2},
        word_boosting={"enable_word_boosting": True, "word_boosting_list": [{"phrases": ["rubout"], "boost": 50.0}]},
        endpointing_config={"stop_history": 600, "stop_history_eou": 400},
    )  # fmt: skip
    assert configure == Configure(
        RawFormat("s16le", 8000, 2),
        LiveStreamOptions(
            model="fake-asr", phrases=(("rubout", 1.0),), endpoint_silence_ms=400, decoder="alsd", n_best=3,
            extra={"lm_weight": 0.3},
        ),
        has_header=True,
    )  # fmt: skip
    assert updated["type"] == "transcription_session.updated"
    assert "diarization_config.max_speaker_count" in updated["penstock_ignored"]
    restored = update(protocol, speaker_diarization={"enable_speaker_diarization": False, "max_speaker_count": 8})[-1]
    assert "diarization_config.max_speaker_count" not in restored["penstock_ignored"]
    assert updated["session"]["input_audio_params"] == {"sample_rate_hz": 8000, "num_channels": 2}
    assert updated["session"]["recognition_config"]["enable_automatic_punctuation"] is False
    assert "client_secret" not in updated["session"]


def test_defaults(protocol):
    configure, audio = append(protocol)
    assert configure == Configure(
        RawFormat("s16le", 16_000), LiveStreamOptions(model="fake-asr", endpoint_silence_ms=800)
    )
    assert audio == AppendAudio(b"abcd")
    assert append(protocol) == [AppendAudio(b"abcd")]


@pytest.mark.parametrize(("name", "encoding"), [("pcm16", "s16le"), ("g711_ulaw", "mulaw"), ("g711_alaw", "alaw")])
def test_formats(protocol, name, encoding):
    configure, _ = update(protocol, input_audio_format=name)
    assert configure.audio == RawFormat(encoding, 16_000)
    assert not configure.has_header


def test_a_commit_is_confirmed_and_means_nothing(protocol):
    append(protocol)
    (first,) = send(protocol, "input_audio_buffer.commit", final=True)
    assert first["type"] == "input_audio_buffer.committed"
    assert first["item_id"] != first["previous_item_id"]


def test_deltas_have_the_whole_text_and_completed_the_words(protocol):
    append(protocol)
    texts = ["on", "one", "one", "one two"]
    events = [event for text in texts for event in protocol.dialect.result(Partial(0, text, 0, (), 1.0))]
    assert [event["delta"] for event in events] == ["on", "one", "one two"]
    (completed,) = protocol.dialect.result(final("one two", [Word("one", 120, 480, 0.5), Word("two", 600, 900, 0.25)]))
    assert (completed["type"], completed["transcript"]) == (f"{ITEM}.completed", "one two")
    assert completed["is_last_result"] is False
    assert completed["words_info"]["words"][0] == {
        "word": "one", "start_time": 120, "end_time": 480, "confidence": 0.5, "speaker_tag": 0
    }  # fmt: skip
    assert completed["item_id"] == events[0]["item_id"]
    assert protocol.dialect.result(final("")) == []


@pytest.mark.parametrize(("runtime", "is_end"), [
    ({"force_eou": "true"}, True), ({"force_eou": "1"}, True), ({"force_eou": True}, True),
    ({"force_eou": "false"}, False), ({}, False), (None, False),
])  # fmt: skip
def test_a_forced_end_behind_the_audio(protocol, runtime, is_end):
    append(protocol)
    actions = append(protocol, runtime_config=runtime)
    assert actions == [AppendAudio(b"abcd"), *([END_SEGMENT] if is_end else [])]


def test_a_forced_end_of_silence_is_answered(protocol):
    append(protocol, runtime_config={"force_eou": "true"})
    (completed,) = protocol.dialect.result(final("", forced=True))
    assert (completed["transcript"], completed["is_last_result"]) == ("", False)


def test_done_ends_the_stream_with_the_last_result(protocol):
    append(protocol)
    assert send(protocol, "input_audio_buffer.done") == [FINISH]
    (completed,) = protocol.dialect.result(final("one", is_last=True))
    assert completed["is_last_result"] is True
    assert error(append(protocol))["param"] == "type"


def test_clear_discards_the_segment(protocol):
    append(protocol)
    ended, cleared = send(protocol, "input_audio_buffer.clear")
    assert (ended, cleared["type"]) == (END_SEGMENT, "input_audio_buffer.cleared")
    assert protocol.dialect.result(Partial(0, "one", 3, (), 1.0)) == []
    assert protocol.dialect.result(final("one", forced=True)) == []
    assert len(protocol.dialect.result(final("two"))) == 1


def test_other_settings_before_the_end_are_no_last_result(protocol):
    append(protocol)
    (completed,) = protocol.dialect.result(final("one", is_last=True))
    assert completed["is_last_result"] is False


@pytest.mark.parametrize(
    "session",
    [
        {"input_audio_format": "opus"},
        {"input_audio_params": {"sample_rate_hz": 100}},
        {"input_audio_params": {"sample_rate_hz": "fast"}},
        {"input_audio_params": {"num_channels": 9}},
        {"input_audio_transcription": {"model": "nothing"}},
        {"input_audio_transcription": {"language": "fr-FR"}},
        {"recognition_config": {"max_alternatives": -1}},
        {"recognition_config": {"custom_configuration": "no colon"}},
        {"recognition_config": {"custom_configuration": "nothing:1"}},
        {"recognition_config": {"custom_configuration": 5}},
        {"speaker_diarization": {"enable_speaker_diarization": True, "max_speaker_count": 9}},
        {"word_boosting": {"enable_word_boosting": True, "word_boosting_list": "rubout"}},
        {"endpointing_config": []},
    ],
)
def test_a_wrong_field_is_named_and_changes_nothing(protocol, session):
    found = error(update(protocol, **session))
    assert (found["type"], found["event_id"]) == ("transcription_error", "client_1")
    assert found["message"]
    assert "the session was rejected" in error(append(protocol))["message"]  # nothing is read with defaults
    assert update(protocol, voice="a", endpointing_config={"stop_history": 5})[-1]["penstock_ignored"] == [
        "voice", "endpointing_config.stop_history",
    ]  # fmt: skip
    assert append(protocol) == [AppendAudio(base64.b64decode(AUDIO))]


def test_names_of_ignored_fields_are_bounded(protocol):
    names = update(protocol, **{"x" * 1000: 1, "\r\n": 1, " ": 1, "ü": 1, **{f"field{i}": 1 for i in range(999)}})[-1]
    first, *others, last = names["penstock_ignored"]
    assert (first, others[:3], last) == (
        "x" * 90 + "...",
        [r"\r\n", "''", r"\xfc"],
        f"and {999 + 3 - len(others):,} more",
    )
    assert sum(map(len, names["penstock_ignored"])) <= 1000


def test_a_lost_stream(protocol):
    assert protocol.dialect.failed(GatewayError(GatewayCode.STREAM_LOST, "the replica is gone")) == []
    (event,) = protocol.dialect.failed(GatewayError(GatewayCode.AUDIO_INVALID, "samples are not finite"))
    assert event["error"]["code"] == "audio_invalid"
