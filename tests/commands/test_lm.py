"""`penstock lm`: what it prints and writes, and errors that name what is wrong."""

import argparse
import io
import sys

import pytest

from penstock.commands import lm
from penstock.errors import PenstockError
from penstock.scoring.ngram.arpa import read_arpa
from penstock.scoring.ngram.estimation import text as text_module
from penstock.scoring.ngram.io import load_ngram_lm, read_token_names

TEXT = "enter six two\nyes\n\n  \nrubout g m e f three nine\nno\n"


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    lm.add_parser(parser.add_subparsers())
    args = parser.parse_args(["lm", *map(str, arguments)])
    return args.run(args)


def test_build_prints_counts_and_perplexity(bundled_model, text, tmp_path, capsys):
    out = tmp_path / "lm.arpa"
    assert run("build", "--model", bundled_model, "--out", out, "--heldout", text, "--order", "2", text, text) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith(f"{out}: 8 sentences, ")
    assert lines[1] == "1-grams: 66"
    assert lines[2].startswith("2-grams: ")
    assert lines[3].startswith("perplexity ")
    assert "over 4 sentences" in lines[3]
    assert captured.err.startswith("penstock: warning: too little text for the discounts of order 2")
    assert load_ngram_lm(out, read_token_names(bundled_model / "tokenizer.model")).order == 2


def test_build_reads_standard_input(bundled_model, text, tmp_path, capsys, monkeypatch):
    outs = [tmp_path / name for name in ("file.arpa", "stdin.arpa", "twice.arpa")]
    run("build", "--model", bundled_model, "--out", outs[0], text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + TEXT.encode())))
    run("build", "--model", bundled_model, "--out", outs[1], "-")
    run("build", "--model", bundled_model, "--out", outs[2], "--prune", "0", "0", "5", "--", text)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert "\nngram 3=0\n" in outs[2].read_text()


def test_unknown_characters_are_told(bundled_model, tmp_path, capsys):
    (tmp_path / "upper.txt").write_text("ENTER six\n")
    run("build", "--model", bundled_model, "--out", tmp_path / "lm.arpa", tmp_path / "upper.txt")
    assert "tokens are unknown to the model's tokenizer" in capsys.readouterr().err


def test_compile_makes_the_quick_form(bundled_model, text, tmp_path, capsys):
    arpa, quick = tmp_path / "lm.arpa", tmp_path / "lm.safetensors"
    run("build", "--model", bundled_model, "--out", arpa, text)
    capsys.readouterr()
    assert run("compile", "--model", bundled_model, "--tokens", "pieces", "--out", quick, arpa) == 0
    assert capsys.readouterr().out.startswith(f"{quick}: order 3, ")
    assert load_ngram_lm(quick, read_token_names(bundled_model / "tokenizer.model")).order == 3
    with pytest.raises(PenstockError, match=r"another vocabulary: .* read as offset"):
        run("compile", "--model", bundled_model, "--tokens", "offset", "--out", quick, "--force", arpa)
    for command in (["build", "--out", arpa, text], ["compile", "--out", quick, arpa]):
        with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: .*lm\..* exists; --force replaces it"):
            run(*command, "--model", bundled_model)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (TEXT.encode(), ["--order", "0"], "order 0: expected 1 to 10"),
        (TEXT.encode(), ["--prune", "-1"], "--prune holds -1"),
        (TEXT.encode(), ["--heldout", "gone.txt"], r"gone\.txt: No such file"),
        (b"", [], "there is no text to build a language model from"),
        (b"six\ntw\xff\n", [], r"text\.txt: line 2: not UTF-8"),
        (b"six\ntw\0\n", [], r"text\.txt: line 2: contains a zero byte"),
    ],
)
def test_wrong_input_is_named(bundled_model, text, tmp_path, content, arguments, message):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(PenstockError, match=message):
        run("build", text, "--model", bundled_model, "--out", tmp_path / "lm.arpa", *arguments)


def test_a_line_of_a_text_has_a_limit(bundled_model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "text.txt").write_text("six\n" + "six " * (1 << 18) + "\n")
    with pytest.raises(PenstockError, match=r"text\.txt: line 2: is longer than 1 MiB: not a text file"):
        run("build", text, "--model", bundled_model, "--out", tmp_path / "lm.arpa")


def test_a_place_that_cannot_be_written_is_named_before_the_work(tmp_path):
    for arguments in (["build", "gone.txt"], ["compile", "gone.arpa"]):
        for out, message in {"/gone/lm.safetensors": "there is no directory /gone", tmp_path: "is a directory"}.items():
            with pytest.raises(PenstockError, match=f"OUTPUT_FAILED: .*{message}|must end in"):
                run(*arguments, "--model", "gone", "--out", out)
    with pytest.raises(PenstockError, match=r"SETTING_INVALID: lm\.arpa: the name must end in \.safetensors"):
        run("compile", "gone.arpa", "--model", "gone", "--out", "lm.arpa")


def test_a_missing_model_or_text_is_named(bundled_model, text, tmp_path):
    with pytest.raises(PenstockError, match="--model is missing"):
        run("build", "--out", tmp_path / "lm.arpa", text)
    with pytest.raises(PenstockError, match=r"gone\.txt: No such file"):
        run("build", "--model", bundled_model, "--out", tmp_path / "lm.arpa", tmp_path / "gone.txt")


def test_standard_input_is_read_once_only(bundled_model, tmp_path):
    with pytest.raises(PenstockError, match="--heldout - and TEXT -: standard input can be read once only"):
        run("build", "--model", bundled_model, "--out", tmp_path / "lm.arpa", "--heldout", "-", "-")


def test_words_need_no_model(tmp_path, text, capsys):
    out, heldout = tmp_path / "words.arpa", tmp_path / "heldout.txt"
    heldout.write_text("enter six\nenter seven\n", encoding="utf-8")
    assert run("build", "--words", "--order", "2", "--out", out, "--heldout", heldout, text) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == f"{out}: 4 sentences, 12 words"
    assert captured.out.splitlines()[1] == "1-grams: 15"  # 12 words, <unk>, <s>, </s>
    assert captured.out.splitlines()[3].endswith("per word over 2 sentences, 4 words, 1 of them unknown")
    assert "unknown" not in captured.err
    arpa = read_arpa(out)
    assert arpa.words[:4] == ["<unk>", "enter", "six", "two"]
    total = sum(10.0**score for score in arpa.sections[0].log10_probabilities[:-2].tolist())
    end = 10.0 ** float(arpa.sections[0].log10_probabilities[-1])
    assert total + end == pytest.approx(1, abs=1e-5)


def test_words_take_no_model_but_that_of_the_environment(bundled_model, tmp_path, text, monkeypatch):
    command = ("build", "--words", "--out", tmp_path / "words.arpa", text)
    with pytest.raises(PenstockError, match="SETTING_INVALID: --model is given with --words"):
        run(*command, "--model", bundled_model)
    monkeypatch.setenv("PENSTOCK_MODEL", str(bundled_model))
    assert run(*command) == 0


def test_a_sentence_mark_is_no_word(tmp_path, capsys):
    (tmp_path / "marked.txt").write_text("<s> enter </s>\n", encoding="utf-8")
    with pytest.raises(PenstockError, match=r"CORPUS_INVALID: .*marked\.txt: contains <s>"):
        run("build", "--words", "--out", tmp_path / "words.arpa", tmp_path / "marked.txt")


def test_build_leaves_language_tags_out(golden_bundle, tmp_path):
    model, outs = golden_bundle("prompt_hybrid"), [tmp_path / "plain.arpa", tmp_path / "tagged.arpa"]
    for out, tag in zip(outs, ("", " <en-US>"), strict=True):
        path = tmp_path / f"{out.stem}.txt"
        path.write_text("".join(f"{line}{tag}\n" for line in ("seven two", "yes", "no stop")), encoding="utf-8")
        run("build", "--model", model.directory, "--out", out, str(path))
    assert outs[0].read_bytes() == outs[1].read_bytes()
    unigrams = dict(
        zip(read_arpa(outs[0]).words, 10 ** read_arpa(outs[0]).sections[0].log10_probabilities, strict=False)
    )
    assert "<en-US>" not in unigrams
    assert sum(p for word, p in unigrams.items() if word != "<s>") == pytest.approx(1.0, abs=1e-4)
