"""Paths through G have the costs of the back-off model, pruned and broken models included."""

import itertools
import random

import kaldifst
import numpy as np
import pytest

from penstock.errors import LanguageModelError
from penstock.scoring.ngram.arpa import read_arpa
from penstock.scoring.wfst.building.fst_arrays import FstArrays, to_fst
from penstock.scoring.wfst.building.grammar import grammar_fst
from penstock.scoring.wfst.building.lexicon import Symbols
from tests.helpers.graph_paths import only, openfst_best_path
from tests.helpers.ngram_golden import arpa_path, golden_text
from tests.helpers.reference.ngram import NgramReference, write_random_arpa
from tests.helpers.reference.word_grammar import WordGrammar


def backing_off_freely(fst: FstArrays, symbols: Symbols) -> kaldifst.StdVectorFst:
    """G that may back off before each word and before the end."""
    return to_fst(fst._replace(inputs=np.where(fst.inputs == symbols.backoff_output, 0, fst.inputs).astype(np.int32)))


def cost_in_g(fst: kaldifst.StdVectorFst, numbers: list[int], symbols: Symbols) -> float:
    return openfst_best_path(fst, only([number - 1 for number in numbers], symbols.word_count)).cost


@pytest.mark.parametrize("seed", range(6))
def test_costs_of_random_models(tmp_path, seed):
    chance = random.Random(seed)
    vocabulary = ["a", "b", "c"]
    order = chance.choice((1, 2, 3, 4))
    write_random_arpa(tmp_path / "lm.arpa", chance, vocabulary, order, with_unknown=bool(seed % 2), per_order=8)
    words = ("", *vocabulary)
    symbols = Symbols(1, len(words))
    fst = backing_off_freely(grammar_fst(read_arpa(tmp_path / "lm.arpa"), words, symbols), symbols)
    reference = WordGrammar(NgramReference.read(tmp_path / "lm.arpa"))
    for length in range(1, 4):
        for numbers in itertools.product((1, 2, 3), repeat=length):
            wanted = reference.cost(tuple(words[number] for number in numbers))
            assert cost_in_g(fst, list(numbers), symbols) == pytest.approx(wanted, abs=1e-4)


def test_contexts_without_ngrams_are_no_states():
    arpa = read_arpa(arpa_path("3"))
    words = ("", *sorted({token for sentence in golden_text() for token in sentence}))
    symbols = Symbols(1, len(words))
    fst = grammar_fst(arpa, words, symbols)
    leaves = np.bincount(fst.sources[fst.inputs != symbols.backoff_output], minlength=fst.state_count)
    assert (leaves[np.isinf(fst.final_weights)] > 0).all()
    assert np.count_nonzero(fst.inputs == symbols.backoff_output) == fst.state_count - 1
    reference = WordGrammar(NgramReference.read(arpa_path("3")))
    fst = backing_off_freely(fst, symbols)
    for sentence in golden_text()[:5]:
        numbers = [words.index(token) for token in sentence]
        assert cost_in_g(fst, numbers, symbols) == pytest.approx(reference.cost(tuple(sentence)), abs=1e-3)


def test_other_words_are_left_out():
    arpa = read_arpa(arpa_path("3"))
    words = ("", golden_text()[0][0])
    fst = grammar_fst(arpa, words, Symbols(1, 2))
    assert set(fst.inputs.tolist()) <= {1, 2}
    assert fst.inputs[fst.sources == fst.start].tolist().count(1) <= 1


def test_a_model_without_sentence_marks_is_rejected(tmp_path):
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\t<s>\n-1\ta\n\n\\end\\\n")
    with pytest.raises(LanguageModelError, match="</s> is not among the 1-grams"):
        grammar_fst(read_arpa(tmp_path / "lm.arpa"), ("", "a"), Symbols(1, 2))
