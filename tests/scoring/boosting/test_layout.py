"""States share blocks wherever they can: what a table takes is bounded by the arcs of its trie."""

import random

import numpy as np
import pytest

from penstock.scoring.boosting.layout import build_table
from penstock.scoring.boosting.phrases import TokenPhrase
from penstock.scoring.boosting.trie import PhraseTrie
from tests.helpers.phrases import random_boosts


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
