"""Options of a stream: read, defaulted and rejected by name."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from penstock.decoding.sizes import MAX_BEAM_SIZE
from penstock.endpointing.rules import ENDPOINT_STATES, NO_ENDPOINTS
from penstock.errors import ErrorCode, PenstockError, StreamError, StreamErrorKind
from penstock.model.bundle import Checkpoint
from penstock.model.config import MAX_ILM_ALPHA, MAX_ILM_BETA, IlmPair
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import DecoderOffer
from penstock.pipeline.options.stream_options import OptionReader, ResolvedOptions, parse_stream_options
from penstock_common.options import EndpointState
from tests.helpers.phrases import NumberTokenizer

WITH_LM = DecodingConfig(lm="some.arpa", lm_weight=0.3, beam_size=8)
TOKENIZER = NumberTokenizer([False] * 3000)
ALL = DecoderOffer({})


def parse(options: dict, config: DecodingConfig, offer: DecoderOffer = ALL, tokenizer=TOKENIZER) -> ResolvedOptions:
    return parse_stream_options(options, config, tokenizer, offer)


PLAIN = parse({}, DecodingConfig())


def test_nothing_chosen_is_greedy_without_anything():
    assert (PLAIN.decoder, PLAIN.beam_size, PLAIN.n_best, PLAIN.lm_weight, PLAIN.ilm) == ("greedy", 1, 0, 0.0, None)
    assert (PLAIN.phrases, PLAIN.endpoint, PLAIN.carries_state, PLAIN.keeps_tags) == ((), NO_ENDPOINTS, False, False)
    assert parse({"decoder": None, "endpoint_state": None}, DecodingConfig()) == PLAIN


def test_defaults_are_the_servers():
    options = parse({"decoder": "alsd"}, WITH_LM)
    assert (options.decoder, options.beam_size, options.n_best, options.lm_weight) == ("alsd", 8, 0, 0.3)
    assert parse({"lm_weight": 0}, WITH_LM).lm_weight == 0


@pytest.mark.parametrize("phrases", ['["3 12", ["7", -1.5]]', ["3 12", ("7", -1.5)]])
def test_phrases_with_and_without_their_own_boost(phrases):
    options = parse({"boosted_phrases": phrases, "boost": 3}, DecodingConfig())
    assert options.phrases == (((3, 12), 3.0), ((7,), -1.5))


def test_unknown_phrases_can_be_left_out(bundled_model):
    tokenizer = Tokenizer(bundled_model / "tokenizer.model")
    options = {"boosted_phrases": ["日本", "Nine"]}
    with pytest.raises(StreamError, match="'Nine' has characters"):
        parse(options, DecodingConfig(), tokenizer=tokenizer)
    found = parse(options | {"unknown_phrases": "ignore"}, DecodingConfig(), tokenizer=tokenizer)
    assert found.phrases == parse({"boosted_phrases": ["nine"]}, DecodingConfig(), tokenizer=tokenizer).phrases


REJECTED = [
    ({"langage": "de", "decoder": "alsd"}, "'langage' is not known; accepted: decoder"),
    ({"decoder": "viterbi"}, "decoder 'viterbi' is not known; offered: greedy, alsd, aes, ctc"),
    ({"decoder": "alsd", "beam_size": 0}, "beam_size is 0; accepted: integers from 1 to 8"),
    ({"beam_size": 4}, "beam_size needs decoder alsd, aes or ctc_beam; the stream's is greedy"),
    ({"n_best": 1}, "n_best needs decoder"),
    ({"speakers": 1}, "speakers is 1; accepted: off, on, or the most speakers"),
    ({"boost": 2.0}, "boost is given without boosted_phrases"),
    ({"boosted_phrases": "new york"}, "boosted_phrases is not JSON"),
    ({"boosted_phrases": "[" * 100_000}, "boosted_phrases is not JSON"),
    ({"decoder": "x" * 100_000}, "decoder 'x{59}[.]{3} is not known"),
    ({"x" * 100_000: 1}, "'x{59}[.]{3} is not known"),
    ({"decoder": "alsd", "beam_size": 10**5000}, "beam_size is a value too long to write"),
    ({"boosted_phrases": [["a", 10**5000]]}, "has boost a value too long to write"),
    ({"boosted_phrases": [[["a"] * 1000]]}, r"entry 1 is \[\['a', .*[.]{3};"),
    ({"boosted_phrases": '["a", ""]'}, r"phrase 2 \(''\) is empty"),
    ({"boosted_phrases": '[["a", NaN]]'}, r"phrase 1 \('a'\) has boost nan"),
    ({"boosted_phrases": '["a"]', "boost": math.nan}, "boost is nan; accepted: numbers from -100 to 100"),
    ({7: 1}, "'7' is not known"),
]


@pytest.mark.parametrize(("options", "match"), REJECTED)
def test_what_is_wrong_is_named(options, match):
    with pytest.raises(StreamError, match=match) as rejected:
        parse(options, WITH_LM)
    assert rejected.value.kind is StreamErrorKind.INVALID_ARGUMENT
    is_of_phrases = str(rejected.value).partition(": ")[2].startswith("boosted phrases: ")
    assert rejected.value.code is (ErrorCode.PHRASES_INVALID if is_of_phrases else ErrorCode.OPTION_INVALID)


def test_what_the_declaration_says_is_what_the_searches_take():
    accepted = [ResolvedOptions.option(name).accepted for name in ("ilm_alpha", "ilm_beta")]
    assert accepted == [f"numbers from 0 to {limit:g}" for limit in (MAX_ILM_ALPHA, MAX_ILM_BETA)]
    assert DecodingConfig.option("beam_size").accepted == f"integers from 1 to {MAX_BEAM_SIZE}"
    assert get_args(EndpointState) == ENDPOINT_STATES


def test_endpoints_carry_the_state_by_the_stream_the_server_or_the_vocabulary():
    sentences = NumberTokenizer([])
    sentences.has_punctuation_and_capitals = True
    carrying = DecodingConfig(endpoint_state="carry")
    for tokenizer, config, options, carries in (
        (TOKENIZER, DecodingConfig(), {}, False),
        (sentences, DecodingConfig(), {}, True),
        (TOKENIZER, carrying, {}, True),
        (sentences, DecodingConfig(endpoint_state="reset"), {}, False),
        (TOKENIZER, carrying, {"endpoint_state": "reset"}, False),
        (TOKENIZER, DecodingConfig(), {"endpoint_state": "carry"}, True),
    ):
        assert parse_stream_options(options, config, tokenizer, ALL).carries_state == carries


def test_a_weight_without_a_language_model():
    with pytest.raises(StreamError, match=r"lm_weight is 0.5, but no language model is loaded; accepted: 0"):
        parse({"lm_weight": 0.5}, DecodingConfig())
    assert parse({"lm_weight": 0.0}, DecodingConfig()) == PLAIN


WITH_ILM = DecoderOffer({}, {name: IlmPair(0.6, 0.4) for name in ("greedy", "alsd", "aes")})


def test_weights_of_the_internal_language_model_are_the_servers_or_the_streams():
    assert parse({}, DecodingConfig(), WITH_ILM).ilm == (0.6, 0.4)
    assert parse({"decoder": "aes", "ilm_beta": 0}, DecodingConfig(), WITH_ILM).ilm == (0.6, 0.0)
    assert parse({"ilm_alpha": 2, "ilm_beta": 10.0}, DecodingConfig(), WITH_ILM).ilm == (2.0, 10.0)
    assert parse({"decoder": "ctc"}, DecodingConfig(), WITH_ILM).ilm is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ilm_beta": 10.5}, "ilm_beta is 10.5; accepted: numbers from 0 to 10"),
        ({"ilm_alpha": 2.5}, "ilm_alpha is 2.5; accepted: numbers from 0 to 2"),
        ({"ilm_beta": 10**400}, "ilm_beta is 1000"),
        ({"decoder": "ctc", "ilm_beta": 0}, "ilm_beta needs decoder greedy, alsd or aes; the stream's is ctc"),
    ],
)
@pytest.mark.parametrize("offer", [ALL, WITH_ILM])
def test_a_wrong_weight_is_named_with_and_without_the_model(offer, options, match):
    with pytest.raises(StreamError, match=match) as rejected:
        parse(options, DecodingConfig(), offer)
    assert rejected.value.kind is StreamErrorKind.INVALID_ARGUMENT


def test_a_weight_without_an_internal_language_model():
    message = "ilm_beta is 0.5, but the model has no internal language model; accepted: 0$"
    with pytest.raises(StreamError, match=message):
        parse({"ilm_beta": 0.5}, DecodingConfig())
    message = "ilm_alpha is 0.6, but the model has no internal language model; accepted: 1$"
    with pytest.raises(StreamError, match=message):
        parse({"decoder": "alsd", "ilm_alpha": 0.6}, DecodingConfig())
    assert parse({"ilm_beta": 0, "ilm_alpha": 1}, DecodingConfig()) == PLAIN


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"ilm_alpha": 2.1}, "ilm_alpha is 2.1; accepted: numbers from 0 to 2"),
        ({"beam_size": 33}, "beam_size is 33; accepted: integers from 1 to 32"),
        ({"lm": ""}, "lm is ''; accepted: a file"),
        ({"lm_weight": 0.5}, "lm_weight is 0.5, but there is no language model"),
        ({"kernels": "triton"}, "kernels is 'triton'; accepted: auto, torch, fused"),
        ({"max_symbols": 0}, "max_symbols is 0; accepted: integers from 1 to 50"),
    ],
)
def test_a_wrong_decoder_option_is_named(fields, match):
    with pytest.raises(PenstockError, match=match):
        DecodingConfig(**fields)


def test_speakers_need_a_speaker_model_that_has_their_mode(bundled_model, speaker_bundle):
    checkpoint, whole = Checkpoint(bundled_model), speaker_bundle.config
    config = replace(whole, live_steps={"low_latency": whole.live_steps["low_latency"]})
    reader, without = (OptionReader(checkpoint, DecodingConfig(), one) for one in (config, None))
    wanted = ({}, {"speakers": "off"}, {"speakers": "on"}, {"speakers": 2, "speaker_mode": "file"})
    assert [reader.read(options).speaker_mode_number for options in wanted] == [0, 0, 1, 4]
    for reads, options, code in (
        (without, {"speakers": "on"}, ErrorCode.SPEAKERS_NOT_SERVED),
        (reader, {"speakers": 3, "speaker_mode": "ultra_low_latency"}, ErrorCode.OPTION_INVALID),
    ):
        with pytest.raises(StreamError) as error:
            reads.read(options)
        assert error.value.code is code
    assert "the speaker model has low_latency, file" in error.value.message
    assert without.read({"speakers": "off"}).speakers == "off"
    with pytest.raises(StreamError, match="'speakers' cannot change"):
        reader.read_change({"speakers": "on"}, reader.read({}))
