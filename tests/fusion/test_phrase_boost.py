"""What paths add up to is what the rule says, whatever the list and whoever shares the batch."""

import random

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from penstock.fusion.automaton import Arcs, Automaton
from penstock.fusion.phrase_boost import NO_PHRASES
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_store import PhraseStore
from penstock.fusion.phrase_table import OWN_ARCS
from tests.fusion.phrases import (
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
FORMS = (False, True)
"""Paged and dense."""


def scores_along(boosts: dict, labels: list[int]) -> tuple[list[float], float]:
    """Each label's score, and that of ending; the same in both forms."""
    found, dense = (_scores_along(PhraseStore(WORDS, MEMORY, is_dense=form), boosts, labels) for form in (False, True))
    assert dense == found
    return found


def _scores_along(store: PhraseStore, boosts: dict, labels: list[int]) -> tuple[list[float], float]:
    state, scores = torch.tensor([store.acquire(as_list(boosts))]), []
    for label in labels:
        arcs = store.boost.advance(state, torch.tensor([label]))
        scores.append(float(arcs.scores))
        state = arcs.next_states
    return scores, float(store.boost.final_scores(state))


def test_each_token_earns_its_boost_and_a_whole_phrase_keeps_it():
    assert scores_along({(NEW, YORK, CITY): 2.0}, [NOISE, NEW, YORK, CITY, NOISE]) == ([0, 2, 2, 2, 0], 0)


def test_what_a_broken_phrase_was_lent_is_paid_back():
    assert scores_along({(NEW, YORK, CITY): 2.0}, [NEW, YORK, NOISE]) == ([2, 2, -4], 0)
    assert scores_along({(NEW, YORK, CITY): 2.0}, [NEW, NEW, YORK]) == ([2, 0, 2], -4)


def test_the_longest_of_nested_phrases_counts():
    boosts = {(NEW,): 1.0, (NEW, YORK, TIMES): 3.0}
    assert scores_along(boosts, [NEW, YORK, TIMES]) == ([3, 3, 3], 0)
    assert scores_along(boosts, [NEW, YORK, NOISE]) == ([3, 3, -5], 0)
    assert scores_along(boosts, [NEW, YORK]) == ([3, 3], -5)


def test_of_overlapping_phrases_the_first_counts():
    boosts = {(NEW, YORK): 1.0, (YORK, CITY): 2.0}
    assert scores_along(boosts, [NEW, YORK, CITY]) == ([1, 1, 0], 0)
    assert scores_along(boosts, [NOISE, YORK, CITY]) == ([0, 2, 2], 0)
    # Where the first comes to nothing, the second counts from where it began.
    assert scores_along({(NEW, YORK, TIMES): 1.0, (YORK, CITY): 2.0}, [NEW, YORK, CITY]) == ([1, 1, 2], 0)


def test_a_phrase_counts_only_where_its_last_word_ends():
    assert scores_along({(NEW, YORK): 2.0}, [NEW, YORK, S, NOISE]) == ([2, 2, -4, 0], 0)
    assert scores_along({(NEW, YORK): 2.0, (YORK, S): 1.0}, [NEW, YORK, S]) == ([2, 2, -2], 0)


def test_a_penalty_is_not_lent_but_comes_with_the_last_token():
    assert scores_along({(NEW, YORK): -2.0}, [NEW, YORK, NOISE]) == ([0, -4, 0], 0)
    assert scores_along({(YORK,): -2.0}, [YORK, S]) == ([-2, 2], 0)


def test_a_longer_phrase_is_an_exception_to_a_penalty():
    assert scores_along({(YORK,): -2.0, (NEW, YORK): 0.0}, [NEW, YORK, YORK]) == ([0, 0, -2], 0)


@pytest.mark.parametrize("is_dense", FORMS)
@pytest.mark.parametrize("seed", range(40))
def test_random_lists_add_up_as_the_reference_says(seed, is_dense):
    chance = random.Random(seed)
    tokenizer = random_tokenizer(chance, chance.choice([2, 3, 12, 40]))
    boosts = random_boosts(chance, tokenizer.size)
    store = PhraseStore(tokenizer, MEMORY, is_dense=is_dense)
    store.acquire(as_list(random_boosts(chance, tokenizer.size)))  # so that the list does not lie in the first pages
    start = store.acquire(as_list(boosts))
    labels = [random_labels(chance, tokenizer.size, boosts) for _ in range(8)]
    expected = torch.stack([expected_totals(row, boosts, tokenizer.continues_word) for row in labels])
    torch.testing.assert_close(totals_along(store.boost, [start] * 8, labels), expected, rtol=0, atol=1e-5)


phrases = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    boosts=st.dictionaries(phrases, st.integers(-8, 8).map(lambda eighths: eighths / 4), min_size=1, max_size=6),
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    continues=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_small_lists_add_up_exactly(boosts, labels, continues):
    for is_dense in FORMS:
        store = PhraseStore(NumberTokenizer(continues), 2**16, is_dense=is_dense)
        found = totals_along(store.boost, [store.acquire(as_list(boosts))], [labels])
        assert found[0].tolist() == expected_totals(labels, boosts, continues).tolist()


def every_arc(boost: Automaton, states: torch.Tensor) -> Arcs:
    """Of `states` [N] by every label, [N, V]."""
    labels = torch.arange(boost.vocabulary_size).expand(len(states), -1)
    return boost.advance(states.unsqueeze(1).expand(-1, boost.vocabulary_size), labels)


def reachable(boost: Automaton, start: int) -> torch.Tensor:
    found = torch.tensor([start])
    while True:
        more = torch.cat([found, every_arc(boost, found).next_states.flatten()]).unique()
        if len(more) == len(found):
            return found
        found = more


@pytest.mark.parametrize("is_dense", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_all_labels_at_once_score_as_one_by_one(seed, is_dense):
    chance = random.Random(seed)
    tokenizer = random_tokenizer(chance, 30)
    store = PhraseStore(tokenizer, MEMORY, is_dense=is_dense)
    states = reachable(store.boost, store.acquire(as_list(random_boosts(chance, 30, most=150))))
    assert len(states) > 10
    assert torch.equal(store.boost.look(states).scores, every_arc(store.boost, states).scores)
    for label in range(store.boost.vocabulary_size):
        labels = torch.full_like(states, label)
        assert torch.equal(
            store.boost.look(states).next_states(labels), store.boost.advance(states, labels).next_states
        )


@pytest.mark.parametrize("is_dense", FORMS)
def test_a_state_with_many_ways_on_is_exact(is_dense):
    size = 4 * OWN_ARCS
    tokenizer = NumberTokenizer([label % 2 == 0 for label in range(size)])
    crowd = {(1, 3, label): 1 + label / 64 for label in range(size)} | {
        (3, label): label / 32 - 1 for label in range(size)
    }
    boosts = crowd | {(1, 3): 0.5, (3,): 0.25, (5, 1, 3): -1.0, (5, 1): 2.0}
    store = PhraseStore(tokenizer, MEMORY, is_dense=is_dense)
    start = store.acquire(as_list(boosts))
    labels = [[5, 1, 3, label, 3, label, 1, 3] for label in range(size)]
    expected = torch.stack([expected_totals(row, boosts, tokenizer.continues_word) for row in labels])
    torch.testing.assert_close(totals_along(store.boost, [start] * size, labels), expected, rtol=0, atol=1e-5)


def test_64_streams_with_64_lists_are_each_as_alone():
    chance = random.Random(0)
    tokenizer = random_tokenizer(chance, 40)
    lists = [random_boosts(chance, 40) for _ in range(63)] + [{}]
    labels = [random_labels(chance, 40, boosts) for boosts in lists]
    together = PhraseStore(tokenizer, 4 * MEMORY)
    starts = [together.acquire(as_list(boosts)) for boosts in lists]
    assert len(set(starts)) == 64
    found = totals_along(together.boost, starts, labels)
    for row, boosts in enumerate(lists):
        alone = PhraseStore(tokenizer, MEMORY)
        same = totals_along(alone.boost, [alone.acquire(as_list(boosts))], [labels[row]])
        assert torch.equal(found[row], same[0])


@pytest.mark.parametrize("is_dense", FORMS)
def test_streams_without_phrases_score_nothing(is_dense):
    store = PhraseStore(WORDS, MEMORY, is_dense=is_dense)
    start = store.acquire(as_list({(NEW, YORK): 2.0}))
    assert store.acquire(PhraseList([])) == NO_PHRASES
    states = torch.tensor([NO_PHRASES, start])
    labels = torch.tensor([NEW, NEW])
    arcs = store.boost.advance(states, labels)
    assert arcs.scores.tolist() == [0, 2]
    assert arcs.next_states[0] == NO_PHRASES
    assert store.boost.look(states).scores[0].tolist() == [0] * WORDS.size
    assert store.boost.final_scores(arcs.next_states).tolist() == [0, -2]
    assert every_arc(store.boost, states[:1]).next_states.eq(NO_PHRASES).all()


@pytest.mark.parametrize("is_dense", FORMS)
def test_shapes_and_types(is_dense):
    store = PhraseStore(WORDS, MEMORY, is_dense=is_dense)
    states = torch.full((2, 3), store.acquire(as_list({(NEW,): 2.0})))
    arcs = store.boost.advance(states, torch.zeros_like(states))
    assert (arcs.scores.shape, arcs.scores.dtype) == ((2, 3), torch.float32)
    assert (arcs.next_states.shape, arcs.next_states.dtype) == ((2, 3), torch.int64)
    assert store.boost.final_scores(arcs.next_states.t()).shape == (3, 2)
    assert store.boost.look(states[0]).scores.shape == (3, WORDS.size)
    assert store.boost.advance(states[:0], states[:0]).scores.shape == (0, 3)
    assert store.boost.advance(states, torch.full_like(states, WORDS.size)).scores.isfinite().all()  # blank: no harm
