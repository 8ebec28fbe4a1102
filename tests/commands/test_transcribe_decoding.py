"""`penstock transcribe`: beams, phrases, alternatives and lattices."""

import json
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.recognizer import StreamingRecognizer
from penstock.transcription import offline
from tests.helpers.decoding_graphs import write_word_loop
from tests.helpers.fresh_process import run_penstock
from tests.helpers.openfst_text import word_sequences_of_text
from tests.helpers.transcribe_command import lines, run


def test_the_limits_of_a_beam_can_be_chosen(model, audio, monkeypatch):
    made, real = [], StreamingRecognizer

    def make(*given, decoding: DecodingConfig, **more) -> StreamingRecognizer:
        made.append(decoding)
        return real(*given, decoding=decoding, **more)

    monkeypatch.setattr(offline, "StreamingRecognizer", make)
    assert run("--model", model, "--decoder", "alsd", "--beam-size=2", "--max-symbols=3", audio[1]) == 0
    assert run("--model", model, "--decoder", "alsd:beam=2,max_symbols=3", audio[1]) == 0
    assert made == [DecodingConfig(beam_size=2, max_symbols=3)] * 2


def test_a_phrase_has_a_boost_of_its_own(model, audio, capsys):
    def transcribed(*boosts: str) -> dict:
        chosen = ["--decoder", "alsd", "--n-best", "1", "--boost-phrase", *boosts]
        assert run("--model", model, "--context", "6,1", "--json", *chosen, audio[0]) == 0
        (document,) = lines(capsys)
        return json.loads(document) if isinstance(document, str) else document

    own = transcribed("seven:10", "--boost", "1")
    assert own["alternatives"] == transcribed("seven", "--boost", "10")["alternatives"]
    assert own["alternatives"] != transcribed("seven", "--boost", "1")["alternatives"]


def test_alternatives_follow_the_text(model, audio, capsys):
    assert run("--model", model, "--context", "6,1", "--decoder", "alsd", "--n-best", "2", audio[0]) == 0
    text, *alternatives = lines(capsys)
    scores, texts = zip(*(line.split(maxsplit=1) for line in alternatives), strict=True)
    assert texts[0] == text
    assert len(set(texts)) == 2
    assert float(scores[0]) >= float(scores[1])


def test_lattices_beside_the_text(model, audio, tmp_path, capsys):
    arguments = ["--model", model, "--decoder=ctc_beam", "--n-best=3", "--lattices", str(tmp_path / "l"), audio[0]]
    assert run(*arguments) == 0
    text, *alternatives = lines(capsys)
    assert (tmp_path / "l" / "medium.fst.txt").read_text().startswith(f"0\t1\t{text.split()[0]}\n")
    finals = [line for line in (tmp_path / "l" / "medium.fst.txt").read_text().splitlines() if line.count("\t") == 1]
    assert len(finals) == len(alternatives) == 3
    with pytest.raises(PenstockError, match=r"medium\.fst\.txt exists"):
        run(*arguments)
    assert run("--resume", *arguments) == run("--force", *arguments) == 0


def test_lattices_of_a_graph_search_hold_more_than_the_alternatives(model, audio, tmp_path, capsys):
    """Also from two processes, which hand their lattices over."""
    words = ("a", "be", "bed", "bad", "dad")
    graph = write_word_loop(tmp_path / "words.safetensors", Path(model) / "tokenizer.model", words)
    command = ("--model", model, "--decoder", "wfst", "--graph", str(graph))
    assert run(*command, "--n-best", "2", "--lattices", str(tmp_path / "l"), audio[0]) == 0
    _, best, _ = lines(capsys)
    text = (tmp_path / "l" / "medium.fst.txt").read_text()
    found = sorted((cost, words) for words, cost in word_sequences_of_text(text, words).items())
    assert len(found) > 2 and found[0][0] == pytest.approx(-float(best.split()[0]), abs=0.01)
    assert [words[number] for number in found[0][1]] == best.split()[1:]
    two = ("--processes", "2", "--n-best", "2", "--lattices", str(tmp_path / "two"))
    assert run_penstock("transcribe", *command, *two, *audio).returncode == 0
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["medium.fst.txt", "short.fst.txt"]
    again = word_sequences_of_text((tmp_path / "two" / "medium.fst.txt").read_text(), words)
    assert min(again, key=again.__getitem__) == found[0][1]
