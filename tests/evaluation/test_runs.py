"""Runs in this process and through a server, with the search of `--decoder`."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.report import Conditions, render
from penstock.evaluation.runs import (
    GREEDY,
    FirstStep,
    Outcome,
    RunResult,
    Variant,
    collect,
    parse_decoder,
    recognize_through_server,
    sweep_decoders,
)
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_client import Segment, ServerFullError, ServerUnreachableError, StreamError, StreamOptions, Transcript

UTTERANCES = [
    Utterance(Path(f"{i}.wav"), 2.0, text, Path("m.jsonl"), i + 1, speaker=f"s{i}")
    for i, text in enumerate(["a b", "c", "d e", "", "f", "g", "h", "i"])
]
TEXTS = ["a x", "c", "d", "oh", "f", "g", "h", "z"]
VARIANT = Variant(AttentionContext(70, 6), GREEDY)
CONDITIONS = Conditions({"path": "my-model"}, None, "a machine", "cpu", 1, 2, 4, ["m.jsonl"])


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
        ("aes:depth=3", "'depth' is not an option of aes; options: lm, lm_weight, beam_size, ilm_alpha"),
        ("alsd:kernels=fused", "'kernels' is not an option of alsd"),
        ("alsd:beam=4,beam=5", "'beam' is given twice"),
        ("alsd:beam_size=4,beam=5", "'beam' is given twice"),
        ("alsd:beam=wide", "beam is 'wide'; accepted: integers from 1 to 32"),
        ("alsd:ilm_beta=11", "ilm_beta is '11'; accepted: numbers from 0 to 10"),
        ("ctc:ilm_beta=0", "'ilm_beta' is not an option of ctc"),
        ("greedy:boost=much", "boost is 'much'; accepted: numbers from -100 to 100"),
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
    times_s = iter([0.0, 9.0, 12.0])
    first_step = FirstStep(lambda: next(times_s))
    utterances = [replace(each, audio_s=10.0) for each in UTTERANCES]

    def outcomes():
        first_step(5.0)  # at 9 s, after the start of the processes
        first_step(75.0)
        yield from (Outcome(i, text) for i, text in enumerate(TEXTS))

    found = collect(VARIANT, utterances, outcomes(), first_step=first_step)
    assert (found.rtfx, found.elapsed_s) == (75.0 / 3.0, 12.0)
    assert result().rtfx is None, "16 s of audio"


def test_table():
    text = render(CONDITIONS, [result(), result(Variant(AttentionContext(70, 0), GREEDY), {1: "1.wav: lost"})])
    lines = text.splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    rows = [dict(zip(table[0], row, strict=True)) for row in table[2:]]
    assert len({len(line) for line in lines if line.startswith("|")}) == 1, "columns are aligned"
    assert [row["context"] for row in rows] == ["[70,6]", "[70,0]"]
    assert [row["WER %"] for row in rows] == ["33.3", "37.5"]
    assert [row["failed"] for row in rows] == ["0", "1"]
    assert rows[0]["words/min without speech"] == "30.0"
    assert "speech: 7 utterances, 9 words, 0.2 min" in lines
    assert "  substituted  b → x 1, i → z 1" in lines
    assert "  deleted      e 1" in lines
    assert "  no speech    oh 1" in lines
    assert rows[0]["RTFx"] == "-"
    assert "  speakers     s7 100.0 % of 1 words, s0 50.0 % of 2 words, s2 50.0 % of 2 words" in lines
    assert "normalizer: none" in lines
    assert "  failed       1.wav: lost" in lines


class StandIn:
    """Answers each file with its name, at most `max_live` at a time; `failures` are raised, each once."""

    def __init__(self, max_live: int = 1000, failures: dict[str, Exception] | None = None):
        self.max_live, self.failures = max_live, dict(failures or {})
        self.live, self.peak_live, self.lock = 0, 0, threading.Lock()
        self.boosted_phrases: list[object] = []
        self.languages: list[str | None] = []

    def transcribe(self, audio: str, request_ms: float, options: StreamOptions | None = None) -> Transcript:
        with self.lock:
            self.boosted_phrases.append(options and options.boosted_phrases)
            self.languages.append(options and options.language)
            if self.live >= self.max_live:
                raise ServerFullError("s", "all stream slots are taken")
            self.live += 1
            self.peak_live = max(self.peak_live, self.live)
        try:
            threading.Event().wait(0.005)
            if failure := self.failures.pop(Path(audio).name, None):
                raise failure
            return Transcript([Segment(f"text of {Path(audio).name}")])
        finally:
            with self.lock:
                self.live -= 1


def utterances(count: int) -> list[Utterance]:
    return [Utterance(Path(f"{i}.wav"), 1.0, "", Path("m.jsonl"), i + 1) for i in range(count)]


def test_all_utterances_are_recognized_concurrently():
    client = StandIn()
    outcomes = list(recognize_through_server(client, utterances(30), streams=7))
    assert sorted(outcomes) == [Outcome(i, f"text of {i}.wav") for i in range(30)]
    assert 2 <= client.peak_live <= 7


@pytest.mark.parametrize("has_languages", [True, False])
def test_an_utterance_s_language_is_sent_to_a_model_with_a_choice(has_languages):
    client = StandIn()
    first, second = utterances(2)
    list(recognize_through_server(client, [replace(first, language="de-DE"), second], 1, has_languages))
    assert client.languages == ["de-DE" if has_languages else None, None]


def test_a_server_that_stays_full_fails_the_utterance():
    (outcome,) = recognize_through_server(StandIn(max_live=0), utterances(1), streams=1)
    assert outcome.error == "STREAM_LIMIT: 0.wav: stream 's': all stream slots are taken"


def test_an_interrupted_run_does_not_wait_for_its_streams():
    """Streams of a full server wait for a day; the client's end is theirs."""
    is_closed, still_runs = threading.Event(), threading.Event()

    class Waiting(StandIn):
        def transcribe(self, audio: str, request_ms: float, options: StreamOptions | None = None) -> Transcript:
            if audio != "0.wav" and not is_closed.wait(20):
                still_runs.set()
            return Transcript([Segment("a")])

    outcomes = recognize_through_server(Waiting(), utterances(4), streams=4)
    assert next(outcomes).number == 0
    outcomes.close()
    is_closed.set()
    assert not still_runs.is_set()


def test_a_stream_that_fails_is_named_and_the_others_go_on():
    client = StandIn(failures={"3.wav": StreamError("s", "lost its state", "STREAM_LOST")})
    outcomes = sorted(recognize_through_server(client, utterances(6), streams=3))
    assert [outcome.number for outcome in outcomes if outcome.error] == [3]
    assert outcomes[3].error == "STREAM_LOST: 3.wav: stream 's': lost its state"


def test_a_server_that_is_gone_ends_the_run():
    client = StandIn(failures={f"{i}.wav": ServerUnreachableError("host:1", "refused") for i in range(2, 400)})
    with pytest.raises(PenstockError, match="SERVER_FAILED: cannot reach a server at host:1: refused"):
        list(recognize_through_server(client, utterances(400), streams=2))
    assert len(client.failures) > 50, "what had not begun is left"
