"""Runs in this process, with the search of `--decoder`."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.runs import (
    GREEDY,
    Clocks,
    FirstStep,
    Outcome,
    RunResult,
    Variant,
    collect,
    parse_decoder,
    sweep_decoders,
)
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig

UTTERANCES = [
    Utterance(Path(f"{i}.wav"), 2.0, text, Path("m.jsonl"), i + 1, speaker=f"s{i}")
    for i, text in enumerate(["a b", "c", "d e", "", "f", "g", "h", "i"])
]
TEXTS = ["a x", "c", "d", "oh", "f", "g", "h", "z"]
VARIANT = Variant(AttentionContext(70, 6), GREEDY)


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
        ("greedy:beam=4", "'beam' is not an option of greedy; options: lm, lm_weight, max_symbols"),
        ("alsd:beam=4,beam=5", "'beam' is given twice"),
        ("alsd:beam=wide", "beam is 'wide'; accepted: integers from 1 to 32"),
        ("greedy:lm_weight=0.1", "lm_weight needs lm=FILE"),
        ("greedy:lm=x.arpa", "lm needs lm_weight=W, which is 0 by default"),
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


def result(variant: Variant = VARIANT, failures: dict[int, str] | None = None) -> RunResult:
    failures = failures or {}
    outcomes = [Outcome(i, text, failures.get(i)) for i, text in enumerate(TEXTS)]
    return collect(variant, UTTERANCES, reversed(outcomes))


def test_outcomes_may_come_in_any_order():
    found = result()
    assert [error.hypothesis for error in found.errors] == TEXTS
    assert found.score.speech.words.edits == 3
    assert found.score.speech_free.inserted_words == 1


def test_the_speed_counts_from_the_first_step_on():
    readings = iter([Clocks(0.0, 1.0), Clocks(9.0, 20.0), Clocks(12.0, 25.0)])
    first_step = FirstStep(lambda: next(readings))
    utterances = [replace(each, audio_s=10.0) for each in UTTERANCES]

    def outcomes():
        first_step(5.0)  # at 9 s, after the start of the processes
        first_step(75.0)
        yield from (Outcome(i, text) for i, text in enumerate(TEXTS))

    found = collect(VARIANT, utterances, outcomes(), first_step=first_step)
    assert (found.rtfx, found.cpu_rtfx, found.elapsed_s) == (75.0 / 3.0, 75.0 / 5.0, 12.0)
    assert result().rtfx is None and result().cpu_rtfx is None, "16 s of audio"
