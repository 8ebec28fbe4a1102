"""Decoder names and options, and errors that say what is accepted."""

import pytest

from penstock.errors import PenstockError
from penstock.evaluation.decoder_choice import GREEDY, parse_decoder, sweep_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig


def test_greedy():
    choice = parse_decoder("greedy")
    assert (choice.name, choice.options, str(choice)) == ("greedy", {}, "greedy")
    assert choice.decoding == GREEDY.decoding == DecodingConfig()
    assert str(GREEDY) == "greedy"


def test_options_are_converted_and_the_text_is_kept():
    choice = parse_decoder("alsd:beam=4,lm=dir/a=b.arpa,lm_weight=0.3")
    assert choice.options == {"beam_size": 4, "lm": "dir/a=b.arpa", "lm_weight": 0.3}
    assert str(choice) == "alsd:beam=4,lm=dir/a=b.arpa,lm_weight=0.3"
    assert parse_decoder("alsd:beam_size=4").options == {"beam_size": 4}
    assert parse_decoder("greedy:ilm_alpha=0.6,ilm_beta=0.4").decoding == DecodingConfig(ilm_alpha=0.6, ilm_beta=0.4)
    assert parse_decoder("alsd").options == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("viterbi", "decoder 'viterbi': 'viterbi' is not known; known: greedy, alsd, aes"),
        ("", "decoder '': '' is not known"),
        ("greedy:beam=4", "'beam' is not an option of greedy; options: lm, lm_weight, max_symbols"),
        ("greedy:", "'' is not an option of greedy"),
        ("aes:depth=3", "'depth' is not an option of aes; options: lm, lm_weight, beam_size, lm_fusion"),
        ("alsd:kernels=fused", "'kernels' is not an option of alsd"),
        ("alsd:beam=4,beam=5", "'beam' is given twice"),
        ("alsd:beam_size=4,beam=5", "'beam' is given twice"),
        ("alsd:beam=wide", "beam is 'wide'; accepted: integers from 1 to 32"),
        ("alsd:ilm_beta=11", "ilm_beta is '11'; accepted: numbers from 0 to 10"),
        ("ctc:ilm_beta=0", "'ilm_beta' is not an option of ctc"),
        ("alsd:beam", "beam is ''; accepted: integers from 1 to 32"),
        ("alsd:lm_fusion=late", "lm_fusion is 'late'; accepted: eq2-early, eq2-late, eq3-early, eq3-late"),
        ("aes:aes_margin=nan", "aes_margin is 'nan'; accepted: numbers from 0 to 100"),
        ("alsd:aes_margin=2", "'aes_margin' is not an option of alsd"),
        ("greedy:boost=much", "boost is 'much'; accepted: numbers from -100 to 100"),
        ("greedy:boost=101", "boost is '101'; accepted: numbers from -100 to 100"),
        ("greedy:boost=1,boost=1", "'boost' is given twice"),
        ("ctc:boost=1", "'boost' is not an option of ctc"),
        ("greedy:lm_weight=0.1", "lm_weight needs lm=FILE"),
        ("greedy:lm=x.arpa", "lm needs lm_weight=W, which is 0 by default"),
        ("aes:max_symbols=2", "'max_symbols' is not an option of aes"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(PenstockError) as error:
        parse_decoder(text)
    assert message in str(error.value)


def test_a_sweep_is_each_decoder_with_each_value():
    decoders = ["greedy", "alsd:beam=4,lm=a.arpa"]
    swept = sweep_decoders(decoders, "lm_weight=0.1,0.2")
    assert swept[:2] == ["greedy:lm_weight=0.1", "greedy:lm_weight=0.2"]
    assert swept[2:] == ["alsd:beam=4,lm=a.arpa,lm_weight=0.1", "alsd:beam=4,lm=a.arpa,lm_weight=0.2"]
    assert sweep_decoders(["ctc", "ctc"], None) == ["ctc"]
    for wrong in ("beam", "beam=", "=1", "beam=1,,2"):
        with pytest.raises(PenstockError, match=f"--sweep is '{wrong}'; accepted: OPTION=VALUE,VALUE"):
            sweep_decoders(["alsd"], wrong)


def test_every_option_of_a_beam():
    shared = "beam=2,lm=x.arpa,lm_weight=0.5,lm_fusion=eq2-early,length_normalization=0"
    given = {"beam_size": 2, "lm": "x.arpa", "lm_weight": 0.5, "lm_fusion": "eq2-early", "length_normalization": False}
    alsd = parse_decoder(f"alsd:{shared},max_symbols=3")
    assert alsd.decoding == DecodingConfig(**given, max_symbols=3)
    aes = parse_decoder(f"aes:{shared},aes_expansions=1,aes_margin=0.5,aes_extra_labels=0")
    limits = {"aes_expansions": 1, "aes_margin": 0.5, "aes_extra_labels": 0}
    assert aes.decoding == DecodingConfig(**given, **limits)


def test_the_boost_is_of_utterances_with_phrases():
    phrases = ("new york", ("ada", 3.0))
    assert parse_decoder("aes").options_with(()) == {"decoder": "aes"}
    assert parse_decoder("aes").options_with(phrases) == {"decoder": "aes", "boosted_phrases": list(phrases)}
    boosted = parse_decoder("greedy:boost=-1.5,max_symbols=3")
    assert boosted.options == {"max_symbols": 3}
    assert boosted.options_with(phrases) == {"decoder": "greedy", "boosted_phrases": list(phrases), "boost": -1.5}
    assert parse_decoder("ctc").options_with(phrases) == {"decoder": "ctc"}


def test_the_language_is_of_an_utterance_or_of_all():
    assert parse_decoder("aes").options_with((), "de-DE") == {"decoder": "aes", "language": "de-DE"}
    assert parse_decoder("greedy:language=de-DE").decoding == DecodingConfig(language="de-DE")
