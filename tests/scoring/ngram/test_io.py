"""Files to models: tokens in both spellings, other vocabularies rejected by name, and the compiled form."""

import gzip
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from penstock.errors import PenstockError
from penstock.scoring.ngram.io import (
    NEMO_TOKEN_OFFSET,
    TokenFormat,
    TokenNames,
    find_labels,
    load_ngram_lm,
    read_tables,
    read_token_names,
    save_tables,
)
from tests.helpers.ngram_golden import LABELS, NAMES, arpa_path

METADATA = {"format": "penstock-ngram-lm", "version": "1"}


def in_nemo_spelling(name: str) -> str:
    """A golden model with the token spelling of NeMo's scripts."""
    lines = []
    for line in gzip.decompress(arpa_path(name).read_bytes()).decode().splitlines():
        probability, tab, rest = line.partition("\t")
        ngram, tab2, backoff = rest.partition("\t")
        words = [chr(LABELS[word] + NEMO_TOKEN_OFFSET) if word in NAMES.pieces[1:] else word for word in ngram.split()]
        lines.append(probability + tab + " ".join(words) + tab2 + backoff)
    return "\n".join(lines) + "\n"


def same_tables(one, other) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def test_nemos_spelling_is_the_same_model(tmp_path):
    path = tmp_path / "nemo.arpa"
    path.write_text(in_nemo_spelling("4_pruned"), encoding="utf-8")
    assert same_tables(read_tables(path, NAMES), read_tables(arpa_path("4_pruned"), NAMES))
    with pytest.raises(PenstockError, match=r"nemo\.arpa: another vocabulary: of 17 words, 8 are not .* as pieces"):
        load_ngram_lm(path, NAMES, token_format=TokenFormat.PIECES)


def test_pieces_are_preferred_where_both_spellings_fit():
    names = TokenNames(("<unk>", "d", "e", "f"), 0)  # chr(100), chr(101), chr(102)
    assert find_labels(["d", "e", "<s>"], names).tolist() == [1, 2, -1]
    assert find_labels(["d", "e", "<s>"], names, TokenFormat.OFFSET).tolist() == [0, 1, -1]
    assert find_labels(["d", "g", "</s>"], names).tolist() == [0, 3, -1]


def test_another_vocabulary_is_rejected_by_name():
    other = TokenNames(("<unk>", *(f"▁w{n}" for n in range(30))), 0)
    with pytest.raises(PenstockError, match=r"lmplz_3\.arpa\.gz: another vocabulary: .* 31 tokens.*'▁[a-h]'.*more"):
        load_ngram_lm(arpa_path("3"), other)


def test_names_come_from_the_tokenizer(bundled_model):
    names = read_token_names(bundled_model / "tokenizer.model")
    assert len(names.pieces) == 64
    assert (names.pieces[0], names.pieces[14], names.unknown_label) == ("<unk>", "▁six", 0)
    assert names.control_labels == frozenset()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<s>", "i", "<s> is not among the 1-grams"),
        ("\t</s>", "\ti", "</s> is not among the 1-grams"),
        ("\t<s> b\n", "\t<s> a\n", "line 14: the 2-gram '<s> a' occurs twice"),
    ],
)
def test_models_that_cannot_be_used_are_rejected(tmp_path, old, new, message):
    text = "\\data\\\nngram 1=4\nngram 2=2\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-1\ta\n-1\tb\n\n\\2-grams:\n"
    text = "#\n" + text.replace("\n\n", "\n", 1) + "-1\t<s> a\n-1\t<s> b\n\n\\end\\\n"
    text = text.replace("ngram 2=2\n", "ngram 2=2\n\n")
    path = tmp_path / "lm.arpa"
    names = TokenNames(("a", "b", "i"), -1)
    path.write_text(text)
    load_ngram_lm(path, names)
    path.write_text(text.replace(old, new))
    with pytest.raises(PenstockError, match=message):
        load_ngram_lm(path, names)


def test_ngrams_across_sentences_are_skipped(tmp_path):
    text = "\\data\\\nngram 1=3\nngram 2=4\n\n\\1-grams:\n-1 <s> -.5\n-1 </s> -.25\n-1 a -.1\n\n\\2-grams:\n"
    text += "-.2 </s> <s>\n-.2 a <s>\n-.2 </s> a\n-.2 a </s>\n\n\\end\\\n"
    path = tmp_path / "irstlm.arpa"
    path.write_text(text)
    lm = load_ngram_lm(path, TokenNames(("a",), -1))
    state = lm.advance(torch.tensor(lm.start_state), torch.tensor(0))
    assert state.scores.item() == pytest.approx(-1.5 * np.log(10))
    assert lm.final_scores(state.next_states).item() == pytest.approx(-0.2 * np.log(10))


@pytest.mark.parametrize("name", ["1", "3", "sri"])
def test_the_compiled_form_is_the_same_model(tmp_path, name):
    tables = read_tables(arpa_path(name), NAMES)
    save_tables(tables, tmp_path / "lm.safetensors", NAMES)
    assert same_tables(read_tables(tmp_path / "lm.safetensors", NAMES), tables)


def test_the_compiled_form_is_for_its_tokens_only(tmp_path):
    path = tmp_path / "lm.safetensors"
    save_tables(read_tables(arpa_path("3"), NAMES), path, NAMES)
    with pytest.raises(PenstockError, match=r"another vocabulary; tokens that the model lacks: '▁a', '▁b'"):
        load_ngram_lm(path, TokenNames(("<unk>", "y"), 0))
    with pytest.raises(PenstockError, match="none, but their order differs"):
        load_ngram_lm(path, NAMES._replace(pieces=NAMES.pieces[::-1]))
    with pytest.raises(PenstockError, match=r"must end in \.safetensors"):
        save_tables(read_tables(path, NAMES), tmp_path / "lm.bin", NAMES)
    with pytest.raises(PenstockError, match="cannot be written"):
        save_tables(read_tables(path, NAMES), tmp_path / "gone" / "lm.safetensors", NAMES)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("arc_states", lambda array: array + 10_000, "do not fit together"),
        ("arc_keys", lambda array: array[::-1].copy(), "do not fit together"),
        ("backoff_states", lambda array: np.ones_like(array), "do not fit together"),
        ("start_state", lambda array: array - 1000, "do not fit together"),
        ("root_states", lambda array: array.astype(np.int32), "root_states is int32"),
        ("final_scores", lambda array: array.astype(np.float64), "final_scores is float64"),
        ("order", lambda array: array[:0], "do not fit together"),
        ("order", lambda array: array.reshape(()), "do not have one dimension each"),
        ("order", lambda array: array - 2, "do not fit together"),
        ("order", lambda array: array + 10**9, "do not fit together"),
        ("final_scores", lambda array: array * np.nan, "do not fit together"),
    ],
)
def test_broken_tables_are_rejected(tmp_path, field, change, message):
    path = tmp_path / "lm.safetensors"
    save_tables(read_tables(arpa_path("3"), NAMES), path, NAMES)
    arrays = load_file(path)
    arrays[field] = change(arrays[field])
    save_file(arrays, path, METADATA | {"tokens": json.dumps(NAMES.pieces)})
    with pytest.raises(PenstockError, match=message):
        load_ngram_lm(path, NAMES)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "not a language model of this version"),
        (METADATA | {"version": "2", "tokens": "[]"}, "not a language model of this version"),
        (METADATA, "its token list is not JSON"),
        (METADATA | {"tokens": "3"}, "another vocabulary"),
    ],
)
def test_other_safetensors_are_rejected(tmp_path, metadata, message):
    save_file({"x": np.zeros(1)}, tmp_path / "x.safetensors", metadata)
    with pytest.raises(PenstockError, match=message):
        load_ngram_lm(tmp_path / "x.safetensors", NAMES)


def test_a_missing_tensor_or_file_is_rejected(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": np.zeros(1)}, path, METADATA | {"tokens": json.dumps(NAMES.pieces)})
    for each in (path, tmp_path / "gone.safetensors"):
        with pytest.raises(PenstockError, match="cannot be read"):
            load_ngram_lm(each, NAMES)
    path.write_bytes(b"no tensors")
    with pytest.raises(PenstockError, match="cannot be read"):
        load_ngram_lm(path, NAMES)
