"""`penstock graph`: what it prints and writes, and errors that name what is wrong."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.commands import graph
from penstock.errors import PenstockError
from penstock.model.bundle_files import TOKENIZER_FILE, sha256_of
from penstock.scoring.wfst.graph_file import read_graph
from tests.helpers.word_graphs import recorded_text, word_arpa

TWICE = """\\data\\
ngram 1=3
ngram 2=2

\\1-grams:
0 <s>
-1 </s>
-1 six

\\2-grams:
-1 six six
-1 six six

\\end\\
"""


@pytest.fixture(scope="module")
def arpa(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "words.arpa"
    word_arpa(recorded_text(), path)
    return path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    graph.add_parser(parser.add_subparsers())
    args = parser.parse_args(["graph", *map(str, arguments)])
    return args.run(args)


def test_build_and_info(bundled_model, arpa, tmp_path, capsys):
    out, fst = tmp_path / "g.safetensors", tmp_path / "g.fst"
    assert run("build", "--model", bundled_model, "--lm", arpa, "--out", out, "--openfst", fst) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "lexicon",
        "grammar",
        "lexicon and grammar, minimized",
        "with the normal CTC topology",
        "graph",
        str(out),
    ]
    assert printed.err == ""
    built = read_graph(out)
    built.check_model(64, sha256_of(bundled_model / TOKENIZER_FILE))
    assert set(built.words) == {"", *" ".join(recorded_text()).split()}
    assert built.topology == "normal"
    assert fst.stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.fst", "g.safetensors"]

    assert run("info", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: normal CTC topology"
    assert lines[1] == f"words: {len(built.words) - 1}, spellings: {len(built.words) - 1}"
    assert lines[3] == f"size: {built.describe_size()}"


def test_a_list_of_words_and_a_lexicon(bundled_model, arpa, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("six\nnine\n", encoding="utf-8")
    (tmp_path / "lexicon.txt").write_text("six ▁s ix\nnine\n", encoding="utf-8")
    model = ("--model", bundled_model, "--lm", arpa, "--topology", "compact")
    run("build", *model, "--words", tmp_path / "words.txt", "--out", tmp_path / "w.safetensors")
    error = capsys.readouterr().err
    assert error.startswith("penstock: warning: ")
    assert error.endswith("words.txt: the graph cannot recognize them\n") and "are not in" in error
    run("build", *model, "--lexicon", tmp_path / "lexicon.txt", "--out", tmp_path / "l.safetensors")
    words, lexicon = (read_graph(tmp_path / f"{name}.safetensors") for name in "wl")
    assert words.words == lexicon.words == ("", "six", "nine")
    assert len(words.spellings(1)[0]) == 1 and len(lexicon.spellings(1)[0]) == 2
    assert words.topology == "compact"


def test_an_existing_file_is_replaced_if_forced(bundled_model, arpa, tmp_path):
    out = tmp_path / "g.safetensors"
    out.write_text("mine")
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: .*exists; --force replaces it"):
        run("build", "--model", bundled_model, "--lm", arpa, "--out", out)
    assert out.read_text() == "mine"
    run("build", "--model", bundled_model, "--lm", arpa, "--out", out, "--force")
    read_graph(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "{tmp}/g.bin"], r"SETTING_INVALID: .*ends in \.safetensors"),
        (["--out", "{tmp}/gone/g.safetensors"], "OUTPUT_FAILED: .*there is no directory"),
        (["--openfst", "{tmp}"], "OUTPUT_FAILED: .*(exists|is a directory)"),
        (["--lm", "{tmp}/broken.arpa"], r"LM_INVALID: .*broken\.arpa: line 1: the file ends without"),
        (["--lm", "{tmp}/twice.arpa"], r"LM_INVALID: .*twice\.arpa: line 12: the 2-gram 'six six' occurs twice"),
        (["--lm", "{tmp}/pieces.arpa"], r"GRAPH_INVALID: .*pieces\.arpa: .*are pieces of a tokenizer"),
        (["--lm", "{tmp}/upper.arpa"], r"GRAPH_INVALID: .*upper\.arpa: 2 of 2 words cannot be written .*'SIX', 'TWO'"),
        (
            ["--words", "{tmp}/others.txt"],
            r"GRAPH_INVALID: .*others\.txt: 1 of 2 words are not in the language .*: 'eleven'",
        ),
        (["--words", "{tmp}/gone.txt"], r"GRAPH_INVALID: .*gone\.txt: No such file"),
    ],
)
def test_wrong_input_is_rejected_by_name(bundled_model, arpa, tmp_path, arguments, message):
    (tmp_path / "broken.arpa").write_text("not an ARPA file\n", encoding="utf-8")
    (tmp_path / "others.txt").write_text("six\neleven\n", encoding="utf-8")
    (tmp_path / "twice.arpa").write_text(TWICE, encoding="utf-8")
    word_arpa(["▁six e", "▁two"], tmp_path / "pieces.arpa")
    word_arpa(["SIX", "TWO"], tmp_path / "upper.arpa")
    usual = {"--model": bundled_model, "--lm": arpa, "--out": tmp_path / "g.safetensors"}
    changes = dict(zip(arguments[::2], (value.format(tmp=tmp_path) for value in arguments[1::2]), strict=True))
    with pytest.raises(PenstockError, match=message):
        run("build", *(str(part) for pair in {**usual, **changes}.items() for part in pair))
    assert not list(tmp_path.glob("*.safetensors"))


def build_without(package: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`penstock graph build` in a process in which a package is not installed."""
    code = f"import sys; sys.modules['{package}'] = None; from penstock.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "graph", "build", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_building_does_not_import_torch(bundled_model, arpa, tmp_path):
    done = build_without("torch", "--model", bundled_model, "--lm", arpa, "--out", tmp_path / "g.safetensors")
    assert done.returncode == 0, done.stderr


def test_kaldifst_is_named_where_it_is_missing(bundled_model, arpa, tmp_path):
    done = build_without("kaldifst", "--model", bundled_model, "--lm", arpa, "--out", tmp_path / "g.safetensors")
    assert done.returncode == 1
    assert "PACKAGE_MISSING: building decoding graphs needs kaldifst" in done.stderr
