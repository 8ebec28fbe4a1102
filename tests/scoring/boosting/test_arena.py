"""The scores along a path are those of the rule, for any list and beside any other stream."""

import random

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from penstock.scoring.automaton import Automaton, Transitions
from penstock.scoring.boosting.arena import NO_PHRASES, PhraseArena
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import TokenPhrase
from penstock.scoring.boosting.table import PhraseTrie, build_table
from tests.helpers.phrases import (
    NumberTokenizer,
    as_list,
    expected_totals,
    random_boosts,
    random_labels,
    random_tokenizer,
    totals_along,
)

NEW, YORK, CITY, TIMES, S, NOISE = range(6)
WORDS = NumberTokenizer([False, False, False, False, True, False])  # S carries a word on: york + s
MEMORY = 2**20


def scores_along(boosts: dict, labels: list[int]) -> tuple[list[float], float]:
    """Each label's score, and the score of ending."""
    cache = PhraseCache(WORDS, MEMORY)
    state, scores = torch.tensor([cache.acquire(as_list(boosts))]), []
    for label in labels:
        transitions = cache.automaton.advance(state, torch.tensor([label]))
        scores.append(float(transitions.scores))
        state = transitions.next_states
    return scores, float(cache.automaton.final_scores(state))


def test_the_longest_of_nested_phrases_counts():
    boosts = {(NEW,): 1.0, (NEW, YORK, TIMES): 3.0}
    assert scores_along(boosts, [NEW, YORK, TIMES]) == ([3, 3, 3], 0)
    assert scores_along(boosts, [NEW, YORK, NOISE]) == ([3, 3, -5], 0)
    assert scores_along(boosts, [NEW, YORK]) == ([3, 3], -5)


def test_of_overlapping_phrases_the_first_counts():
    boosts = {(NEW, YORK): 1.0, (YORK, CITY): 2.0}
    assert scores_along(boosts, [NEW, YORK, CITY]) == ([1, 1, 0], 0)
    assert scores_along(boosts, [NOISE, YORK, CITY]) == ([0, 2, 2], 0)
    # Where the first stays incomplete, the second counts.
    assert scores_along({(NEW, YORK, TIMES): 1.0, (YORK, CITY): 2.0}, [NEW, YORK, CITY]) == ([1, 1, 2], 0)


def test_a_phrase_counts_only_where_its_last_word_ends():
    assert scores_along({(NEW, YORK): 2.0}, [NEW, YORK, S, NOISE]) == ([2, 2, -4, 0], 0)
    assert scores_along({(NEW, YORK): 2.0, (YORK, S): 1.0}, [NEW, YORK, S]) == ([2, 2, -2], 0)


@pytest.mark.parametrize("seed", range(40))
def test_random_lists_add_up_as_the_reference_says(seed):
    generator = random.Random(seed)
    tokenizer = random_tokenizer(generator, generator.choice([2, 3, 12, 40]))
    boosts = random_boosts(generator, tokenizer.size)
    cache = PhraseCache(tokenizer, MEMORY)
    cache.acquire(as_list(random_boosts(generator, tokenizer.size)))  # so that the list does not lie in the first pages
    start = cache.acquire(as_list(boosts))
    labels = [random_labels(generator, tokenizer.size, boosts) for _ in range(8)]
    expected = torch.stack([expected_totals(row, boosts, tokenizer.continues_word) for row in labels])
    torch.testing.assert_close(totals_along(cache.automaton, [start] * 8, labels), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_behind_a_separator_as_if_each_phrase_began_with_it_for_nothing(seed):
    generator, tokenizer = random.Random(seed), NumberTokenizer([False, True, False, True, True, False])
    tokenizer.separator = 0
    boosts = {phrase: boost for phrase, boost in random_boosts(generator, 6).items() if 0 not in phrase}
    cache = PhraseCache(tokenizer, MEMORY)
    start = cache.acquire(as_list(boosts))
    spaced = {(0, *phrase): boost * len(phrase) / (len(phrase) + 1) for phrase, boost in boosts.items()}
    labels = [random_labels(generator, 6, {(0, *phrase): boost for phrase, boost in boosts.items()}) for _ in range(8)]
    expected = torch.stack([expected_totals([0, *row], spaced, tokenizer.continues_word)[1:] for row in labels])
    torch.testing.assert_close(totals_along(cache.automaton, [start] * 8, labels), expected, rtol=0, atol=1e-5)


phrases = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    boosts=st.dictionaries(phrases, st.integers(-8, 8).map(lambda eighths: eighths / 4), min_size=1, max_size=6),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    continues=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_small_lists_add_up_exactly(boosts, labels, continues):
    cache = PhraseCache(NumberTokenizer(continues), 2**16)
    found = totals_along(cache.automaton, [cache.acquire(as_list(boosts))], [labels])
    assert found[0].tolist() == expected_totals(labels, boosts, continues).tolist()


def every_arc(boost: Automaton, states: torch.Tensor) -> Transitions:
    """Transitions of `states` [N] by every label, [N, V]."""
    labels = torch.arange(boost.vocabulary_size).expand(len(states), -1)
    return boost.advance(states.unsqueeze(1).expand(-1, boost.vocabulary_size), labels)


def reachable(boost: Automaton, start: int) -> torch.Tensor:
    found = torch.tensor([start])
    while True:
        more = torch.cat([found, every_arc(boost, found).next_states.flatten()]).unique()
        if len(more) == len(found):
            return found
        found = more


@pytest.mark.parametrize("seed", range(8))
def test_all_labels_at_once_score_as_one_by_one(seed):
    generator = random.Random(seed)
    tokenizer = random_tokenizer(generator, 30)
    cache = PhraseCache(tokenizer, MEMORY)
    states = reachable(cache.automaton, cache.acquire(as_list(random_boosts(generator, 30, max_phrases=150))))
    assert len(states) > 10
    assert torch.equal(cache.automaton.score_all(states).scores, every_arc(cache.automaton, states).scores)
    for label in range(cache.automaton.vocabulary_size):
        labels = torch.full_like(states, label)
        assert torch.equal(
            cache.automaton.score_all(states).next_states(labels), cache.automaton.advance(states, labels).next_states
        )


def test_a_state_with_many_transitions_is_exact():
    size = 32
    tokenizer = NumberTokenizer([label % 2 == 0 for label in range(size)])
    many = {(1, 3, label): 1 + label / 64 for label in range(size)} | {
        (3, label): label / 32 - 1 for label in range(size)
    }
    boosts = many | {(1, 3): 0.5, (3,): 0.25, (5, 1, 3): -1.0, (5, 1): 2.0}
    cache = PhraseCache(tokenizer, MEMORY)
    start = cache.acquire(as_list(boosts))
    labels = [[5, 1, 3, label, 3, label, 1, 3] for label in range(size)]
    expected = torch.stack([expected_totals(row, boosts, tokenizer.continues_word) for row in labels])
    torch.testing.assert_close(totals_along(cache.automaton, [start] * size, labels), expected, rtol=0, atol=1e-5)


def test_streams_without_phrases_score_nothing():
    cache = PhraseCache(WORDS, MEMORY)
    start = cache.acquire(as_list({(NEW, YORK): 2.0}))
    assert cache.acquire(()) == NO_PHRASES
    states = torch.tensor([NO_PHRASES, start])
    labels = torch.tensor([NEW, NEW])
    transitions = cache.automaton.advance(states, labels)
    assert transitions.scores.tolist() == [0, 2]
    assert transitions.next_states[0] == NO_PHRASES
    assert cache.automaton.score_all(states).scores[0].tolist() == [0] * WORDS.size
    assert cache.automaton.final_scores(transitions.next_states).tolist() == [0, -2]
    assert every_arc(cache.automaton, states[:1]).next_states.eq(NO_PHRASES).all()


def test_pages_that_are_not_free_cannot_be_taken_or_freed_twice():
    arena = PhraseArena(np.array(WORDS.continues_word), 3 * 64 * (4 + 12 + 8 * 16))
    phrases = [TokenPhrase((label,) * 50, 1.0) for label in (NEW, YORK)]
    table = build_table(PhraseTrie(phrases, WORDS.continues_word), np.array(WORDS.continues_word))
    pages = arena.write(table)
    assert pages == [1, 2]
    with pytest.raises(ValueError, match="2 pages wanted, 0 are free"):
        arena.write(table)
    arena.erase(pages)
    with pytest.raises(ValueError, match="page 1 is free already"):
        arena.erase(pages)
