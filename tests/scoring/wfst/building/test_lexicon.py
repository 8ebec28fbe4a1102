"""Words are spelled by the tokenizer or the lexicon; what cannot be recognized later is rejected by name."""

import re
import string

import pytest

from penstock.errors import GraphError
from penstock.model.tokenizer import Tokenizer
from penstock.model.vocabulary import Vocabulary
from penstock.scoring.wfst.building import lexicon as lexicon_module
from penstock.scoring.wfst.building.lexicon import (
    Lexicon,
    Symbols,
    build_lexicon,
    disambiguation,
    lexicon_fst,
    lm_words,
    read_entries,
)
from tests.helpers.graph_paths import only, openfst_best_path
from tests.helpers.word_graphs import TOKENIZER


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TOKENIZER)


def spelled(lexicon: Lexicon, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [
        (lexicon.words[word], "".join(str(tokenizer.piece(token)) for token in tokens))
        for word, tokens in lexicon.spellings()
    ]


def test_words_are_spelled_by_the_tokenizer(tokenizer):
    lexicon = build_lexicon({"six": [()], "seven": [()]}, ["seven", "six", "two"], tokenizer)
    assert lexicon.words == ("", "six", "seven")
    assert [list(tokens) for _, tokens in lexicon.spellings()] == [tokenizer.encode("six"), tokenizer.encode("seven")]


def test_a_lexicon_overrides_the_spelling(tokenizer, tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("\ufeffIBM\t▁ i ▁ b ▁ m\n\nIBM  ▁ i ▁ b m\nsix\nIBM ▁ i ▁ b m\r\n", encoding="utf-8")
    entries = read_entries(path, with_pieces=True)
    assert list(entries) == ["IBM", "six"]
    lexicon = build_lexicon(entries, ["six", "IBM"], tokenizer)
    assert spelled(lexicon, tokenizer) == [("IBM", " i b m"), ("IBM", " i bm"), ("six", " six")]
    assert lexicon.spelling_words.tolist() == [0, 0, 2, 3]


def test_a_spelling_listed_twice_counts_once(tokenizer):
    pieces = [str(tokenizer.piece(token)).replace(" ", "▁") for token in tokenizer.encode("six")]
    lexicon = build_lexicon({"six": [(), pieces]}, ["six"], tokenizer)
    assert spelled(lexicon, tokenizer) == [("six", " six")]


def test_a_list_and_a_spelling_have_a_limit(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "lexicon.txt"
    path.write_text("six\nseven\n")
    monkeypatch.setattr(lexicon_module, "MAX_SPELLING", 2)
    with pytest.raises(GraphError, match=r"'\w+' has \d+ pieces; accepted: up to 2"):
        build_lexicon({"sixsevensix": [()]}, ["sixsevensix"], tokenizer)
    monkeypatch.setattr(lexicon_module, "MAX_LEXICON_BYTES", 9)
    with pytest.raises(GraphError, match=r"lexicon\.txt: has more than"):
        read_entries(path, with_pieces=True)


@pytest.mark.parametrize(
    ("data", "with_pieces", "message"),
    [
        (b"six\nsix seven\n", False, "line 2: 'six seven', expected one word; --lexicon takes spellings"),
        (b"six\n</s>\n", False, "line 2: '</s>', expected one word"),
        (b"<unk> a\n", True, r"line 1: '<unk> a', expected WORD \[PIECE ...\]"),
        (b"six\n\xff\n", False, "line 2: not UTF-8"),
        (b"\n \n", True, "there are no words"),
    ],
)
def test_a_broken_list_is_rejected_with_its_line(tmp_path, data, with_pieces, message):
    (tmp_path / "words.txt").write_bytes(data)
    with pytest.raises(GraphError, match=rf"GRAPH_INVALID: .*words\.txt: {message}"):
        read_entries(tmp_path / "words.txt", with_pieces)


def test_words_that_the_language_model_lacks_are_counted(tokenizer):
    words = {word: [()] for word in ["six", *string.ascii_lowercase[:7]]}
    message = "7 of 8 words are not in the language model: 'a', 'b', 'c', 'd', 'e' and 2 more; accepted: words among"
    with pytest.raises(GraphError, match=message):
        build_lexicon(words, ["six"], tokenizer)


def test_words_that_the_tokenizer_cannot_write_are_counted(tokenizer):
    message = r"2 of 3 words cannot be written by the model's tokenizer: 'Six', 'naïve'; accepted: .* \(--words\)"
    with pytest.raises(GraphError, match=message):
        build_lexicon({"Six": [()], "naïve": [()], "six": [()]}, ["Six", "six", "naïve"], tokenizer)


@pytest.mark.parametrize("piece", ["xx", "⁇", "▁⁇▁", "<unk>"])
def test_pieces_that_the_tokenizer_lacks_are_named(tokenizer, piece):
    with pytest.raises(GraphError, match=f"1 of 2 pieces are not the model's: {re.escape(repr(piece))}"):
        build_lexicon({"six": [("▁six", piece)]}, ["six"], tokenizer)


def test_a_language_model_of_pieces_is_rejected(tokenizer):
    with pytest.raises(GraphError, match=r"words are pieces of a tokenizer .*expected whole words: `penstock lm build"):
        lm_words(["<s>", "</s>", "▁six", "e"], tokenizer)
    offset = [chr(100 + label) for label in range(tokenizer.size)]
    with pytest.raises(GraphError, match="words are pieces of a tokenizer"):
        lm_words(["<s>", "</s>", *offset], tokenizer)
    with pytest.raises(GraphError, match="has no words"):
        lm_words(["<s>", "</s>", "<unk>"], tokenizer)
    assert lm_words(["<s>", "d", "e", "</s>"], tokenizer) == ["d", "e"]


def make_lexicon(*spellings: tuple[str, list[int]]) -> Lexicon:
    """Over tokens as they are."""

    class Tokens(Tokenizer):
        def __init__(self):
            self.size, self.unknown = 26, -1
            self._pieces = list(string.ascii_lowercase)
            self.vocabulary, self.separator = Vocabulary(tuple(self._pieces), (), -1, frozenset(), ()), None

    entries: dict[str, list[list[str]]] = {}
    for word, tokens in spellings:
        entries.setdefault(word, []).append([string.ascii_lowercase[token] for token in tokens])
    return build_lexicon(entries, entries, Tokens())


def test_equal_spellings_and_beginnings_are_told_apart():
    lexicon = make_lexicon(("two", [1, 2]), ("to", [1, 2]), ("tool", [1, 2, 3]), ("a", [4]), ("toe", [1]), ("b", [5]))
    assert disambiguation(lexicon) == [1, 2, 0, 0, 1, 0]


def test_the_transducer_writes_the_words_of_its_spellings():
    lexicon = make_lexicon(("two", [1, 2]), ("to", [1, 2]), ("tool", [1, 2, 3]), ("a", [4]), ("a", [5, 4]), ("t", [1]))
    symbols = Symbols(6, len(lexicon.words))
    fst = lexicon_fst(lexicon, symbols)
    ends = disambiguation(lexicon)
    first = symbols.backoff_input - 1  # as a column of costs
    for (word, tokens), end in zip(lexicon.spellings(), ends, strict=True):
        labels = [*tokens, *([first + end] if end else [])]
        twice = openfst_best_path(fst, only([first, *labels, first, *labels], first + 3))
        assert (twice.cost, twice.words) == (0, (symbols.backoff_output, word, symbols.backoff_output, word))
    assert openfst_best_path(fst, only([1, 2], first + 3)).cost == float("inf")
