"""The made-up tokenizer reads what it writes, and knows what it cannot write."""

import random

import pytest

from penstock.benchmarking.made_up_tokenizer import MadeUpTokenizer


@pytest.mark.parametrize("size", [2, 12, 13, 1024])
def test_pieces_are_all_different(size):
    tokenizer = MadeUpTokenizer(size)
    assert tokenizer.size == size
    assert len({tokenizer.piece(token) for token in range(size)}) == size


@pytest.mark.parametrize("size", [12, 1024])
def test_it_reads_what_it_writes(size):
    tokenizer, chance = MadeUpTokenizer(size), random.Random(0)
    for _ in range(50):
        tokens = [chance.randrange(1, size // 2) * 2 - 1, *chance.choices(range(1, size), k=5)]
        text = tokenizer.decode(tokens)
        assert tokenizer.encode(text) == tokens
        assert not text.startswith(" ")


@pytest.mark.parametrize("text", ["??", "aa", "aaaaaa", "zzz", "AAA"])
def test_what_it_cannot_write_is_unknown(text):
    """`aaa` has no piece that carries a word on: its number is the unknown piece's."""
    tokenizer = MadeUpTokenizer(12)
    assert tokenizer.unknown in tokenizer.encode(text)
