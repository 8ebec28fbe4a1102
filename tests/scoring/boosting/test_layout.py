"""States share blocks wherever they can: what a table takes is bounded by the arcs of its trie."""

import random

import numpy as np
import pytest

from penstock.scoring.boosting.layout import block_labels, build_table
from penstock.scoring.boosting.tokenization import TokenPhrase
from penstock.scoring.boosting.trie import PhraseTrie
from tests.helpers.phrases import random_boosts


@pytest.mark.parametrize(("vocabulary_size", "labels"), [(1, 16), (64, 16), (512, 16), (1024, 32), (8192, 64)])
def test_blocks_grow_with_the_root_of_the_vocabulary(vocabulary_size, labels):
    assert block_labels(vocabulary_size) == labels


def test_a_state_has_blocks_for_its_own_arcs_only():
    phrases = [TokenPhrase((1, 40, 900, 40), 1.0), TokenPhrase((1, 40, 17), 3.0), TokenPhrase((5,), -1.0)]
    table = build_table(PhraseTrie(phrases, [False] * 1024), np.zeros(1024, dtype=bool))
    roots = 1024 // 32
    assert len(table.pointers) == 7
    # Label 40 after 1; labels 17 and 900, in different blocks, after 1 40; label 40 after 1 40 900.
    assert len(table.block_scores) == roots + 4


@pytest.mark.parametrize("seed", range(10))
def test_numbers_are_in_range_and_blocks_are_bounded(seed):
    generator = random.Random(seed)
    continues_word = np.array([generator.random() < 0.5 for _ in range(100)])
    boosts = random_boosts(generator, 100, max_phrases=200)
    trie = PhraseTrie([TokenPhrase(*phrase) for phrase in boosts.items()], continues_word)
    table = build_table(trie, continues_word)
    states, count = table.pointers.shape
    assert (states, count) == (len(trie), 7)
    assert 0 <= table.pointers.min() <= table.pointers.max() < len(table.block_scores) <= 2 * (states + count)
    assert 0 <= table.block_next.min() <= table.block_next.max() < states
