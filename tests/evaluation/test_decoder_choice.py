"""Decoder names and options, and refusals that say what is accepted."""

import pytest

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
        ("greedy:beam=4", "'beam' is not an option of greedy; options: lm, lm_weight"),
        ("greedy:", "'' is not an option of greedy"),
        ("beam:depth=3", "'depth' is not an option of beam; options: width, lm, lm_weight"),
        ("beam:width=4,width=5", "'width' is given twice"),
        ("beam:width=wide", "width: 'wide': invalid literal"),
        ("beam:width", "width: '': invalid literal"),
    ],
)
def test_what_is_wrong_is_named(beam, text, message):
    with pytest.raises(PenstockError) as error:
        parse_decoder(text)
    assert message in str(error.value)
