"""Options of a stream: read, defaulted and refused by name."""

import math

import pytest

from penstock.decoding_config import DecodingConfig
from penstock.errors import PenstockError, StreamError, StreamErrorKind
from penstock.stream_options import StreamOptions, parse_stream_options

WITH_LM = DecodingConfig(lm="some.arpa", lm_weight=0.3, beam_size=8)


def test_nothing_chosen_is_greedy_without_anything():
    assert parse_stream_options({}, DecodingConfig()) == StreamOptions()


def test_defaults_are_the_servers():
    options = parse_stream_options({"decoder": "alsd"}, WITH_LM)
    assert (options.decoder, options.beam_size, options.n_best, options.lm_weight) == ("alsd", 8, 0, 0.3)
    assert parse_stream_options({"lm_weight": 0}, WITH_LM).lm_weight == 0


@pytest.mark.parametrize("phrases", ['["new york", ["erase", -1.5]]', ["new york", ("erase", -1.5)]])
def test_phrases_with_and_without_their_own_boost(phrases):
    options = parse_stream_options({"boosted_phrases": phrases, "boost": 3}, DecodingConfig())
    assert [tuple(phrase) for phrase in options.phrases.phrases] == [("erase", -1.5), ("new york", 3.0)]


REFUSED = [
    ({"language": "de", "decoder": "alsd"}, "'language' is not an option of the stream start; known: decoder"),
    ({"decoder": "viterbi"}, "decoder 'viterbi' is not known; known: greedy, alsd, aes"),
    ({"decoder": 3}, "decoder 3 is not known"),
    ({"decoder": "alsd", "lm_fusion": "eq2-late"}, "'lm_fusion' is not an option of the stream start; known: decoder"),
    ({"decoder": "alsd", "beam_size": 0}, "beam_size is 0; accepted: whole numbers from 1 to 8"),
    ({"decoder": "aes", "beam_size": 10_000}, "beam_size is 10000; accepted: whole numbers from 1 to 8"),
    ({"decoder": "aes", "beam_size": 2.0}, "beam_size is 2.0"),
    ({"decoder": "aes", "beam_size": True}, "beam_size is True"),
    ({"beam_size": 4}, "beam_size needs decoder alsd or aes; the stream's is greedy"),
    ({"n_best": 1}, "n_best needs decoder"),
    ({"decoder": "alsd", "beam_size": 2, "n_best": 3}, "n_best is 3; accepted: whole numbers from 0 to 2"),
    ({"lm_weight": -0.1}, "lm_weight is -0.1; accepted: numbers from 0 to 10"),
    ({"lm_weight": math.nan}, "lm_weight is nan"),
    ({"lm_weight": "0.5"}, "lm_weight is '0.5'"),
    ({"boost": 2.0}, "boost is given without boosted_phrases"),
    ({"boosted_phrases": "new york"}, "boosted_phrases is not JSON"),
    ({"boosted_phrases": "[" * 100_000}, "boosted_phrases is not JSON"),
    ({"boosted_phrases": '{"a": 1}'}, "boosted_phrases is dict; accepted: a JSON list"),
    ({"boosted_phrases": '[["a", 1, 2]]'}, "entry 1 is"),
    ({"boosted_phrases": "[3]"}, "entry 1 is 3"),
    ({"decoder": "x" * 100_000}, "decoder 'x{59}[.]{3} is not known"),
    ({"x" * 100_000: 1}, "'x{59}[.]{3} is not an option"),
    ({"decoder": "alsd", "beam_size": 10**5000}, "beam_size is a value too long to write"),
    ({"boosted_phrases": [["a", 10**5000]]}, "has boost a value too long to write"),
    ({"boosted_phrases": [[["a"] * 1000]]}, r"entry 1 is \[\['a', .*[.]{3};"),
    ({"boosted_phrases": '["a", ""]'}, r"phrase 2 \(''\) is empty"),
    ({"boosted_phrases": '[["a", NaN]]'}, r"phrase 1 \('a'\) has boost nan"),
    ({"boosted_phrases": '["a"]', "boost": math.nan}, "boost is nan; accepted: numbers from -100 to 100"),
    ({"boosted_phrases": "[]", "boost": math.inf}, "boost is inf; accepted: numbers from -100 to 100"),
    ({"boosted_phrases": '["a"]', "boost": 10**400}, "boost is 1000"),
    ({7: 1, "speed": 2}, "'speed', 7 is not an option"),
    ({"boosted_phrases": ["x" * 201]}, "has 201 characters"),
    ({"boosted_phrases": [f"word {i}" for i in range(2001)]}, "more than 2000 phrases"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED)
def test_what_is_wrong_is_named(options, match):
    with pytest.raises(StreamError, match=match) as refused:
        parse_stream_options(options, WITH_LM)
    assert refused.value.kind is StreamErrorKind.INVALID_ARGUMENT


def test_a_weight_without_a_language_model():
    with pytest.raises(StreamError, match=r"lm_weight is 0.5, but no language model is loaded; accepted: 0"):
        parse_stream_options({"lm_weight": 0.5}, DecodingConfig())
    assert parse_stream_options({"lm_weight": 0.0}, DecodingConfig()) == StreamOptions()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"beam_size": 33}, "beam size 33 is not supported; supported: whole numbers from 1 to 32"),
        ({"beam_size": 0}, "beam size 0"),
        ({"beam_size": 2.5}, "beam size 2.5 is not supported"),
        ({"beam_size": True}, "beam size True is not supported"),
        ({"beam_size": "4"}, "beam size '4' is not supported"),
        ({"lm": "x", "lm_weight": math.nan}, "weight nan"),
        ({"lm": "x", "lm_weight": True}, "weight True"),
        ({"lm_weight": 0.5}, "without a language model"),
        ({"kernels": "triton"}, "kernels 'triton' is not supported; supported: auto, torch, fused"),
        ({"cuda_graphs": "on"}, "CUDA graphs 'on' is not supported; supported: auto, eager, staged, while"),
        ({"lm_fusion": "eq4-late"}, "fusion 'eq4-late' is not supported; supported: eq2-early, eq2-late"),
        ({"lm_fusion": None}, "fusion None is not supported"),
        ({"length_normalisation": 1}, "length normalisation 1 is not supported; supported: True, False"),
        ({"max_symbols": 0}, "max_symbols 0 is not supported; supported: whole numbers from 1 to 50"),
        ({"max_symbols": 51}, "max_symbols 51"),
        ({"aes_expansions": 0}, r"AES\+\+ expansions 0 is not supported; supported: whole numbers from 1 to 10"),
        ({"aes_margin": math.inf}, r"AES\+\+ margin inf is not supported; supported: numbers from 0 to 100"),
        ({"aes_margin": -1}, r"AES\+\+ margin -1"),
        ({"aes_extra_labels": 33}, r"AES\+\+ extra labels 33"),
        ({"phrase_memory_mib": 15}, "phrase memory 15 is not supported; supported: whole numbers from 16 to 16384"),
    ],
)
def test_a_recogniser_cannot_offer_everything(fields, match):
    with pytest.raises(PenstockError, match=match):
        DecodingConfig(**fields)
