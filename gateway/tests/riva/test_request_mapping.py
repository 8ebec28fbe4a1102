import math
from dataclasses import replace

import pytest

from gateway.tests.helpers.fake_streams import GROUP
from penstock_common.audio.pcm import RawFormat
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.proto.riva_audio_pb2 import AudioEncoding
from penstock_gateway.riva.request_mapping import FIELDS, changed, is_forced_end, map_request
from penstock_gateway.stream.options import LiveStreamOptions

ALL = {"verbatim_transcripts": True}
"""A request that sets nothing without an effect."""


def mapped(config=None, settings=None, group=GROUP, **fields):
    return map_request(config or riva.RecognitionConfig(**ALL, **fields), group, settings or Config())


def rejected(code=GatewayCode.FIELD_INVALID, **fields):
    """The parameter and the message of the error."""
    with pytest.raises(GatewayError) as error:
        mapped(settings=fields.pop("settings", None), **fields)
    assert error.value.code is code
    assert "accepted: " in error.value.message
    return error.value.param, error.value.message


def names(message, prefix=""):
    """Dotted names of all fields; those of maps and of messages with a meaning of their own end at the field."""
    for entry in message.DESCRIPTOR.fields:
        inner = entry.message_type
        if inner is None or inner.GetOptions().map_entry or entry.name == "diarization_config":
            yield prefix + entry.name
        else:
            yield from names(inner._concrete_class, f"{prefix}{entry.name}.")


def test_every_field_of_the_configuration_is_in_the_table():
    assert sorted(FIELDS) == sorted(names(riva.RecognitionConfig))


def test_the_least_configuration():
    request = mapped()
    assert request.options == LiveStreamOptions(endpoint_silence_ms=800)
    assert request.audio.raw == RawFormat("s16le", 16_000, 1)
    assert (request.results.language, request.results.max_alternatives) == ("en-US", 1)
    assert not request.results.has_words
    assert not request.ignored


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ENCODING_UNSPECIFIED", "s16le"), ("LINEAR_PCM", "s16le"), ("MULAW", "mulaw"), ("ALAW", "alaw")],
)
def test_raw_encodings(encoding, expected):
    request = mapped(encoding=encoding, sample_rate_hertz=8000, audio_channel_count=2)
    assert request.audio.raw == RawFormat(expected, 8000, 2)


@pytest.mark.parametrize("encoding", ["FLAC", "OGGOPUS"])
def test_compressed_encodings_have_no_raw_form(encoding):
    assert mapped(encoding=encoding).audio.raw is None


def test_the_encodings_are_all_of_riva():
    for encoding in AudioEncoding.values():
        mapped(encoding=encoding)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"encoding": 7}, "config.encoding"),
        ({"sample_rate_hertz": 7999}, "config.sample_rate_hertz"),
        ({"audio_channel_count": 9}, "config.audio_channel_count"),
        ({"language_code": "de-DE"}, "config.language_code"),
        ({"language_code": "x" * 10_000}, "config.language_code"),
        ({"max_alternatives": -1}, "config.max_alternatives"),
        ({"enable_separate_recognition_per_channel": True}, "config.audio_channel_count"),
        *(
            (
                {"diarization_config": {"enable_speaker_diarization": True, "max_speaker_count": most}},
                "config.diarization_config.max_speaker_count",
            )
            for most in (1, 9, -1)
        ),
        ({"custom_configuration": {"speaker_mode": "slow"}}, "config.custom_configuration.speaker_mode"),
        ({"speech_contexts": [{"phrases": ["a"], "boost": math.nan}]}, "config.speech_contexts[0].boost"),
        ({"speech_contexts": [{}, {"phrases": ["a", " "], "boost": 1}]}, "config.speech_contexts[1].phrases"),
        ({"custom_configuration": {"stop_history": "soon"}}, "config.custom_configuration.stop_history"),
        ({"custom_configuration": {"beam_size": "four"}}, "config.custom_configuration.beam_size"),
        ({"custom_configuration": {"beam_size": "9" * 5000}}, "config.custom_configuration.beam_size"),
        ({"custom_configuration": {"lm_weight": "nan"}}, "config.custom_configuration.lm_weight"),
        ({"custom_configuration": {"decoder": "magic"}}, "config.custom_configuration.decoder"),
        ({"custom_configuration": {"no_such_option": "1"}}, "config.custom_configuration"),
        ({"custom_configuration": {"neural_vad.\n": "1"}}, "config.custom_configuration"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    found, message = rejected(**fields)
    assert found == param
    assert param.partition("[")[0].rpartition(".")[2] in message
    assert len(message) < 500


def test_alternatives_choose_a_beam_search():
    options = mapped(max_alternatives=3).options
    assert (options.decoder, options.n_best) == ("alsd", 3)
    assert mapped(max_alternatives=99).options.n_best == GROUP.max_beam_size
    assert mapped(max_alternatives=99, custom_configuration={"beam_size": "2"}).options.n_best == 2
    assert mapped(max_alternatives=1).options == mapped(max_alternatives=0).options == mapped().options


@pytest.mark.parametrize(("most", "speakers"), [(0, "on"), (2, 2), (8, 8)])
def test_diarization_asks_for_speakers_and_words(most, speakers):
    request = mapped(diarization_config={"enable_speaker_diarization": True, "max_speaker_count": most})
    assert (request.options.speakers, request.results.has_words) == (speakers, True)
    off = mapped(diarization_config={"max_speaker_count": 1})
    assert (off.options.speakers, off.results.has_words) == (None, False)


def test_a_chosen_decoder_stays():
    greedy = mapped(max_alternatives=3, custom_configuration={"decoder": "greedy"})
    assert (greedy.options.decoder, greedy.options.n_best, greedy.results.max_alternatives) == ("greedy", 0, 1)
    assert mapped(custom_configuration={"decoder": "alsd"}).options.decoder == "alsd"


def test_phrases_get_nats():
    contexts = [{"phrases": ["market street", "g m e f"], "boost": 20}, {"phrases": ["rubout"], "boost": -500}]
    assert mapped(speech_contexts=contexts).options.phrases == (
        ("market street", 0.4),
        ("g m e f", 0.4),
        ("rubout", -2.0),
    )
    louder = mapped(speech_contexts=contexts, settings=Config(riva_boost_scale=0.05)).options.phrases
    assert louder[0] == ("market street", 1.0)
    assert not mapped(speech_contexts=[{"phrases": ["no boost"]}]).options.phrases


@pytest.mark.parametrize(
    ("fields", "expected_ms"),
    [
        ({}, 800),
        ({"endpointing_config": {}}, 800),
        ({"endpointing_config": {"stop_history": 1200}}, 1200),
        ({"endpointing_config": {"stop_history": 1200, "stop_history_eou": 400}}, 400),
        ({"custom_configuration": {"stop_history_eou": "500"}}, 500),
        ({"custom_configuration": {"endpoint_silence_ms": "600"}, "endpointing_config": {"stop_history": 900}}, 600),
    ],
)
def test_silence_that_ends_a_segment(fields, expected_ms):
    assert mapped(**fields).options.endpoint_silence_ms == expected_ms


def test_other_options_by_name():
    custom = {"lm_weight": "0.3", "beam_size": "2", "endpoint_longest_s": "30", "language_tags": "keep"}
    options = mapped(custom_configuration={**custom, "decoder": "alsd"}).options
    assert options.extra == {"lm_weight": 0.3, "beam_size": 2, "endpoint_longest_s": 30, "language_tags": "keep"}
    assert type(options.extra["beam_size"]) is int


IGNORED = {
    "endpointing_config.start_history": {"endpointing_config": {"start_history": 300}},
    "endpointing_config.start_threshold": {"endpointing_config": {"start_threshold": 0.5}},
    "endpointing_config.stop_threshold": {"endpointing_config": {"stop_threshold": 0.5}},
    "endpointing_config.stop_threshold_eou": {"endpointing_config": {"stop_threshold_eou": 0.5}},
    "enable_automatic_punctuation": {"enable_automatic_punctuation": True},
    "diarization_config.max_speaker_count": {"diarization_config": {"max_speaker_count": 2}},
    "custom_configuration.neural_vad.onset": {"custom_configuration": {"neural_vad.onset": "0.5"}},
    "custom_configuration.enable_vad_endpointing": {"custom_configuration": {"enable_vad_endpointing": "true"}},
}


@pytest.mark.parametrize("name", IGNORED)
def test_a_field_without_an_effect_is_named(name):
    config = riva.RecognitionConfig(**{**ALL, **IGNORED[name]})
    request = mapped(config)
    assert request.ignored == (name,)
    assert request.options == mapped().options
    with pytest.raises(GatewayError, match="strict") as error:
        mapped(config, Config(strict=True))
    assert error.value.param == f"config.{name}"


@pytest.mark.parametrize(("field", "value"), [("language_code", "fr"), ("model", "other model")])
def test_a_value_without_an_effect_is_an_error_of_a_strict_gateway_with_the_name_of_its_field(field, value):
    group = replace(GROUP, languages=(), detected_languages=())
    wrong = rejected(settings=Config(strict=True), group=group, **{field: value})
    assert wrong[0] == f"config.{field}"
    assert wrong[1].endswith("accepted: unset")


def test_fields_that_are_not_set_are_not_named():
    assert mapped(riva.RecognitionConfig(), Config(strict=True)).ignored == ()


def test_phrases_that_the_model_cannot_write_are_named():
    config = riva.RecognitionConfig(
        **ALL | {"speech_contexts": [riva.SpeechContext(phrases=["Zürich", "24/7", "日本"], boost=20)]}
    )
    request = mapped(config)
    assert request.ignored == ("speech_contexts.phrases '24/7'", r"speech_contexts.phrases '\u65e5\u672c'")
    assert mapped(config, Config(strict=True)).ignored == ()  # the server rejects them


def test_ignored_fields_of_the_table_are_tested():
    assert {name for name, effect in FIELDS.items() if effect == "no effect"} <= IGNORED.keys()


@pytest.mark.parametrize(
    ("languages", "code", "option", "shown"),
    [
        ((), "", None, "en-US"),
        ((), "EN-us", None, "en-US"),
        ((), "en", None, "en-US"),
        (("de-DE", "en-US"), "", None, ""),
        (("de-DE", "en-GB", "en-US"), "en", "en-GB", "en-GB"),
        (("de", "en"), "en-US", "en", "en"),
        (("auto", "de"), "auto", "auto", "auto"),
        (("de-DE", "en-US"), "auto", None, ""),
        (("de-DE", "en-US"), "English", "en-US", "en-US"),
        ((), "fr", None, "en-US"),
    ],
)
def test_languages(languages, code, option, shown):
    request = mapped(language_code=code, group=replace(GROUP, languages=languages, detected_languages=()))
    assert (request.options.language, request.results.language) == (option, shown)
    assert request.ignored == (("language 'fr'",) if code == "fr" else ())


@pytest.mark.parametrize(
    ("detected", "code", "shown"),
    [
        (("de", "en"), "", ""), (("de", "en"), "de", "de"), (("de", "en"), "en-US", "en-US"), (("en",), "", "en-US"),
        (("de",), "", "de"), (("de",), "de-DE", "de"), (("de",), "none", "de"), (("en",), "en-AU", "en-US"),
    ],
)  # fmt: skip
def test_languages_that_the_model_detects(detected, code, shown):
    """Languages are a hint without effect."""
    request = mapped(language_code=code, group=replace(GROUP, detected_languages=detected))
    assert (request.options.language, request.results.language) == (None, shown)


@pytest.mark.parametrize(
    ("given", "used", "ignored"),
    [(-1, 700, ()), (0, 700, ()), (80, 200, ("stop_history",)), (300, 300, ()), (20_000, 10_000, ("stop_history",))],
)
def test_silences_beyond_a_limit_are_limited_and_named(given, used, ignored):
    """Riva's clients send -1 in all fields of endpointing for the defaults."""
    endpointing = {name: -1 for name in ("start_history", "stop_history_eou")} | {"stop_threshold": -1.0}
    settings = Config(endpoint_silence_ms=700)
    request = mapped(endpointing_config=endpointing | {"stop_history": given}, settings=settings)
    assert request.options.endpoint_silence_ms == used
    assert request.ignored == tuple(f"endpointing_config.{name}" for name in ignored)
    custom = mapped(custom_configuration={"stop_history": str(given)}, settings=settings)
    assert custom.options.endpoint_silence_ms == used


@pytest.mark.parametrize(
    ("config", "expected"),
    [({}, False), ({"force_eou": "true"}, True), ({"force_eou": "1"}, True), ({"force_eou": "False"}, False)],
)
def test_forced_end(config, expected):
    assert is_forced_end(config) is expected


def test_a_later_message_changes_phrases_language_and_pauses():
    contexts = '[{"phrases": ["four"], "boost": 50}]'
    runtime = {"speech_contexts": contexts, "stop_history": "400", "endpoint_longest_s": "20", "force_eou": "true"}
    before = riva.RecognitionConfig(
        language_code="en-US", speech_contexts=[riva.SpeechContext(phrases=["five"], boost=50)]
    )
    options = mapped(changed(before, runtime)).options
    assert (options.phrases, options.endpoint_silence_ms, options.extra) == (
        (("four", 1.0),), 400, {"endpoint_longest_s": 20},
    )  # fmt: skip
    assert [list(context.phrases) for context in before.speech_contexts] == [["five"]]
    with pytest.raises(GatewayError, match=r"custom_configuration\.endpoint_longest_s"):
        mapped(changed(before, {"endpoint_longest_s": "x"}))


@pytest.mark.parametrize(
    "config",
    [
        {"force_eou": "yes"},
        {"speech_contexts": "x"},
        {"decoder": "alsd"},
        {"other": "true"},
        {"force_eou": "true", "x" * 999: ""},
    ],
)
def test_an_unknown_runtime_configuration_is_named(config):
    with pytest.raises(GatewayError, match="accepted: ") as error:
        changed(riva.RecognitionConfig(), config)
        is_forced_end(config)
    assert error.value.param.startswith("runtime_config")
    assert len(error.value.message) < 300
