"""Decoder names and options, and refusals that say what is accepted."""

import pytest

from penstock.decoding_config import DecodingConfig
from penstock.errors import PenstockError
from penstock.evaluation import decoder_choice
from penstock.evaluation.decoder_choice import GREEDY, parse_decoder


@pytest.fixture
def beam(monkeypatch):
    """A decoder with options."""
    monkeypatch.setitem(decoder_choice.DECODERS, "beam", {"width": int, "lm": str, "lm_weight": float})


def test_greedy():
    choice = parse_decoder("greedy")
    assert (choice.name, choice.options, str(choice)) == ("greedy", {}, "greedy")
    assert choice.recognizer_arguments == GREEDY.recognizer_arguments == {}
    assert str(GREEDY) == "greedy"


def test_options_are_converted_and_the_text_is_kept(beam):
    choice = parse_decoder("beam:width=4,lm=dir/a=b.arpa,lm_weight=0.3")
    assert choice.options == {"width": 4, "lm": "dir/a=b.arpa", "lm_weight": 0.3}
    assert str(choice) == "beam:width=4,lm=dir/a=b.arpa,lm_weight=0.3"
    assert parse_decoder("beam").options == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("viterbi", "decoder 'viterbi': 'viterbi' is not known; known: greedy, alsd, aes, beam"),
        ("", "decoder '': '' is not known"),
        ("greedy:beam=4", "'beam' is not an option of greedy; options: lm, lm_weight, max_symbols"),
        ("greedy:", "'' is not an option of greedy"),
        ("beam:depth=3", "'depth' is not an option of beam; options: width, lm, lm_weight"),
        ("beam:width=4,width=5", "'width' is given twice"),
        ("beam:width=wide", "width: 'wide': invalid literal"),
        ("beam:width", "width: '': invalid literal"),
        ("alsd:lm_fusion=late", "lm_fusion: 'late': accepted: eq2-early, eq2-late, eq3-early, eq3-late"),
        ("aes:aes_margin=nan", "aes_margin: 'nan': accepted: numbers from 0 to 100"),
        ("alsd:aes_margin=2", "'aes_margin' is not an option of alsd"),
        ("aes:max_symbols=2", "'max_symbols' is not an option of aes"),
    ],
)
def test_what_is_wrong_is_named(beam, text, message):
    with pytest.raises(PenstockError) as error:
        parse_decoder(text)
    assert message in str(error.value)


def test_all_that_a_beam_can_be_told():
    shared = "beam=2,lm=x.arpa,lm_weight=0.5,lm_fusion=eq2-early,length_normalisation=0"
    told = {"beam_size": 2, "lm": "x.arpa", "lm_weight": 0.5, "lm_fusion": "eq2-early", "length_normalisation": False}
    alsd = parse_decoder(f"alsd:{shared},max_symbols=3")
    assert alsd.recognizer_arguments == {"decoding": DecodingConfig(**told, max_symbols=3)}
    aes = parse_decoder(f"aes:{shared},aes_expansions=1,aes_margin=0.5,aes_extra_labels=0")
    limits = {"aes_expansions": 1, "aes_margin": 0.5, "aes_extra_labels": 0}
    assert aes.recognizer_arguments == {"decoding": DecodingConfig(**told, **limits)}
