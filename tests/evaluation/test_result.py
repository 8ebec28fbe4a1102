"""One pass: outcomes in any order, the progress bar, and what its table and report make of it."""

import io
import sys
from pathlib import Path

import pytest

from penstock.config import AttentionContext
from penstock.errors import PenstockError
from penstock.evaluation.decoder_choice import GREEDY
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.outcome import Outcome
from penstock.evaluation.report import Subject, check_writable, report_document
from penstock.evaluation.result import PassResult, Setting, run_pass
from penstock.evaluation.table import render

UTTERANCES = [
    Utterance(Path(f"{i}.wav"), 2.0, text, Path("m.jsonl"), i + 1, speaker=f"s{i}")
    for i, text in enumerate(["a b", "c", "d e", "", "f", "g", "h", "i"])
]
TEXTS = ["a x", "c", "d", "oh", "f", "g", "h", "z"]
SETTING = Setting(AttentionContext(70, 6), GREEDY)
SUBJECT = Subject({"path": "my-model"}, None, "a machine", "cpu", 1, 4, ["m.jsonl"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def result(setting: Setting = SETTING, failures: dict[int, str] | None = None) -> PassResult:
    failures = failures or {}
    outcomes = [Outcome(i, text, failures.get(i)) for i, text in enumerate(TEXTS)]
    return run_pass(setting, UTTERANCES, reversed(outcomes))


def test_outcomes_may_come_in_any_order():
    found = result()
    assert [error.hypothesis for error in found.errors] == TEXTS
    assert found.score.speech.words.edits == 3
    assert found.score.speech_free.inserted_words == 1
    assert found.real_time_factor == pytest.approx(16.0 / found.elapsed_s)


def test_progress_is_shown_on_a_terminal_alone(monkeypatch, capsys):
    result()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    result()
    assert "[70,6] greedy:   0%" in sys.stderr.getvalue()


def test_failures_are_in_no_figure():
    found = result(failures={0: "0.wav: lost", 3: "3.wav: lost"})
    assert found.failures == ["0.wav: lost", "3.wav: lost"]
    assert (found.score.speech.utterances, found.score.speech.words.edits) == (6, 2)
    assert found.score.speech_free.utterances == 0
    assert found.real_time_factor == pytest.approx(12.0 / found.elapsed_s)
    with pytest.raises(PenstockError, match=r"no utterance could be recognised; the first: 0\.wav: lost"):
        result(failures=dict.fromkeys(range(len(TEXTS)), "0.wav: lost"))


def test_table():
    text = render(SUBJECT, [result(), result(Setting(AttentionContext(70, 0), GREEDY), {1: "1.wav: lost"})])
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
    assert any(line.endswith("s1 0.0 % of 1 words, s4 0.0 % of 1 words, 2 more") for line in lines)
    assert "  failed       1.wav: lost" in lines


def test_a_server_does_not_tell_its_context():
    subject = Subject(None, "host:8001", "a machine", None, None, 4, ["m.jsonl"])
    found = result(Setting())
    text = render(subject, [found])
    assert text.startswith("server host:8001, penstock ")
    assert "server's" in text
    document = report_document(subject, UTTERANCES, [found])
    assert (document["model"], document["results"][0]["context"]) == (None, None)


def test_a_failed_utterance_has_no_figures_in_the_report():
    (found,) = report_document(SUBJECT, UTTERANCES, [result(failures={1: "1.wav: lost"})])["results"]
    assert found["utterances"][1] == {
        "audio": "1.wav", "manifest": "m.jsonl", "line": 2, "speaker": "s1", "audio_s": 2.0, "error": "1.wav: lost",
    }  # fmt: skip


def test_a_report_that_cannot_be_written_is_known_before(tmp_path):
    check_writable(tmp_path / "new.json")
    for path, match in [(tmp_path, "is a directory"), (tmp_path / "a" / "b.json", "there is no directory")]:
        with pytest.raises(PenstockError, match=match):
            check_writable(path)
