import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_client import StreamOptions
from penstock_common.options import DECODERS, MAX_BOOST, MAX_PHRASE_CHARACTERS, MAX_PHRASES, PhraseError, parse_phrase

NUMBERS = st.floats(-100, 100)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200).filter(str.strip)


def test_defaults_give_no_parameters():
    assert StreamOptions().parameters() == {}
    assert StreamOptions(decoder=None, n_best=0, boosted_phrases=[]).parameters() == {}


@pytest.mark.parametrize(
    "values",
    [
        *({"decoder": decoder} for decoder in DECODERS),
        {"language": "de-DE", "language_tags": "keep"},
        {"endpoint_silence_ms": 400},
        {"endpoint_state": "carry"},
        {"lm_weight": 0.0},
        {"ilm_alpha": 1.0, "ilm_beta": 0.0},
        {"decoder": "alsd", "n_best": 32},  # the server checks it against its own beam size
    ],
    ids=str,
)
def test_what_is_set_is_sent(values):
    assert StreamOptions(**values).parameters() == values


@settings(max_examples=30, deadline=None)
@given(phrases=st.lists(TEXTS | st.tuples(TEXTS, NUMBERS)), weight=st.floats(0, 10), boost=NUMBERS)
def test_parameters_hold_the_options(phrases, weight, boost):
    options = StreamOptions(
        decoder="alsd", beam_size=4, n_best=4, lm_weight=weight, boosted_phrases=phrases, boost=boost
    )
    parameters = options.parameters()
    phrases_sent = json.loads(parameters.pop("boosted_phrases", "[]"))
    assert [tuple(phrase) if isinstance(phrase, list) else phrase for phrase in phrases_sent] == phrases
    assert parameters == {"decoder": "alsd", "beam_size": 4, "n_best": 4, "lm_weight": weight, "boost": boost}


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_numbers_of_any_kind_become_floats(number):
    parameters = StreamOptions(lm_weight=number, boost=number, boosted_phrases=[("a", number)]).parameters()
    assert parameters == {"lm_weight": 2.0, "boost": 2.0, "boosted_phrases": '[["a", 2.0]]'}
    assert type(parameters["lm_weight"]) is type(parameters["boost"]) is float


def test_whole_numbers_become_ints():
    parameters = StreamOptions(decoder="aes", beam_size=np.int32(3), n_best=np.uint8(2)).parameters()
    assert (type(parameters["beam_size"]), type(parameters["n_best"])) == (int, int)


def test_options_cannot_change_and_do_not_follow_the_callers_list():
    phrases = ["a", ["b", 1]]
    options = StreamOptions(boosted_phrases=phrases)
    phrases.append("c")
    assert options.boosted_phrases == ("a", ("b", 1.0))
    assert options == StreamOptions(boosted_phrases=("a", ("b", 1.0))) and len({options, options}) == 1
    with pytest.raises(ValueError, match="frozen"):
        options.boost = 1.0


@pytest.mark.parametrize(
    "values, message",
    [
        ({"decoder": "beam"}, "decoder is 'beam'; accepted: greedy, alsd, aes, ctc, ctc_beam, wfst"),
        ({"endpoint_state": "soft"}, "endpoint_state is 'soft'; accepted: reset, carry"),
        ({"decoder": "alsd", "beam_size": 0}, "beam_size is 0; accepted: integers from 1 to 32"),
        ({"decoder": "alsd", "beam_size": 2.0}, "beam_size is 2.0"),
        ({"decoder": "alsd", "n_best": -1}, "n_best is -1; accepted: integers from 0 to 32"),
        ({"decoder": "aes", "beam_size": 2, "n_best": 3}, "n_best is 3; accepted: integers from 0 to 2, the beam size"),
        ({"beam_size": 1}, "beam_size needs decoder alsd, aes or ctc_beam; the stream's is the default"),
        ({"n_best": 1}, "n_best needs decoder alsd, aes, ctc_beam or wfst; the stream's is the default"),
        ({"decoder": "ctc", "lm_weight": 1}, "lm_weight needs decoder greedy, .* or wfst; the stream's is ctc"),
        ({"lm_weight": -0.1}, "lm_weight is -0.1; accepted: numbers from 0 to 10"),
        ({"lm_weight": math.nan}, "lm_weight is nan"),
        ({"lm_weight": 10**400}, "lm_weight is 1000"),
        ({"ilm_alpha": -0.1}, "ilm_alpha is -0.1; accepted: numbers from 0 to 2"),
        ({"language": ""}, "language is ''; accepted: a language of the model"),
        ({"unknown_phrases": "drop"}, "unknown_phrases is 'drop'; accepted: reject, ignore"),
        ({"boost": math.nan}, "boost is nan; accepted: numbers from -100 to 100"),
        ({"boosted_phrases": "abc"}, r"boosted_phrases is 'abc'; accepted: a list \["),
        ({"boosted_phrases": None}, "boosted_phrases is None"),
        ({"boosted_phrases": [("a",)]}, r"boosted_phrases: entry 1 is \('a',\); accepted: a list \["),
        ({"speakers": 1}, "speakers is 1; accepted: off, on, .* 2 to 8, which is the model's limit"),
        ({"speakers": 9}, "speakers is 9; accepted: .* 8, which is the model's limit"),
        ({"speakers": "on", "speaker_mode": "slow"}, "speaker_mode is 'slow'; accepted: low_latency"),
        ({"speaker_mode": "file"}, "speaker_mode is given without speakers"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match="^" + message):
        StreamOptions(**values)


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ([("new york", 1.0), ("", 1.0)], r"phrase 2 \(''\) is empty; accepted: one or more words"),
        (["\t\n"], r"phrase 1 \(.*\) is empty"),
        (["x" * 201], r"phrase 1 \('x{40}\.\.\.'\) has 201 characters; accepted: 1 to 200"),
        ([("york", math.nan)], r"phrase 1 \('york'\) has boost nan; accepted: numbers from -100 to 100"),
        ([("york", 10**400)], "has boost 1000"),
        ([("york", True)], "has boost True"),
        ([(None, 1.0)], "phrase 1 is NoneType; accepted: text"),
        (["york \ud800"], "unpaired surrogate"),
        (["york"] * 2001, "more than 2000 phrases; accepted: up to 2000 per stream"),
    ],
)
def test_a_bad_phrase_is_named(phrases, message):
    with pytest.raises(PhraseError, match="^boosted phrases: .*" + message):
        StreamOptions(boosted_phrases=phrases)


def test_the_limits_of_phrases_are_accepted():
    limits = [("x" * MAX_PHRASE_CHARACTERS, MAX_BOOST), ("y", -MAX_BOOST), *["z"] * (MAX_PHRASES - 2)]
    assert StreamOptions(boosted_phrases=limits).boosted_phrases == tuple(limits)


def test_a_phrase_with_its_boost():
    read = {
        text: parse_phrase("here", text) for text in ("four", "four:-10", "12:30", "meet at 9:05 ", "12:30:2", "12:3")
    }
    assert [*read.values()] == ["four", ("four", -10.0), "12:30", "meet at 9:05", ("12:30", 2.0), ("12", 3.0)]
    for argument in ("four:30", "four:1e2", "12:30:15", "12:70", "?!", "- :3"):
        with pytest.raises(ValueError, match=r"^here: "):
            parse_phrase("here", argument)
