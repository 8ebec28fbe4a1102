"""Lists of two forms in one memory: who gets which, and that a search cannot tell them apart but by its time."""

import random

import pytest
import torch

from penstock.errors import StreamError, StreamErrorKind
from penstock.fusion import phrase_store, phrase_tiers
from penstock.fusion.dense_arena import LEAST_DENSE_STATES, DenseBoost
from penstock.fusion.phrase_arena import NO_PHRASES, STATES_PER_PAGE
from penstock.fusion.phrase_boost import PhraseBoost
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_tiers import PhraseTiers
from penstock.fusion.tiered_boost import TieredBoost
from tests.fusion.phrases import (
    NumberTokenizer,
    as_list,
    expected_totals,
    random_boosts,
    random_labels,
    totals_along,
)

SIZE = 40
TOKENIZER = NumberTokenizer([label % 3 == 0 for label in range(SIZE)])
STATE_BYTES = 12 * SIZE + 4
MEMORY_BYTES = 2**22
SMALL, LARGE = 10, 5 * STATES_PER_PAGE
"""States of lists that the tests' tiers take as dense ones, and of those that they do not."""


def list_of(states: int, number: int) -> PhraseList:
    """A list of about so many states; `number`, 0 .. 39, tells lists apart."""
    others = [(label + number) % SIZE for label in range(1, 10)]
    return as_list({(number, label) + (number,) * (states // 9 - 1): 1.0 for label in others})


@pytest.fixture
def tiers() -> PhraseTiers:
    made = PhraseTiers(TOKENIZER, MEMORY_BYTES)
    assert len(made.stores) == 2
    return made


@pytest.fixture
def tight_tiers(monkeypatch) -> PhraseTiers:
    """Two pages for dense lists of one page each, eleven for paged ones."""
    monkeypatch.setattr(phrase_tiers, "LEAST_DENSE_PAGES", 3)
    monkeypatch.setattr(phrase_tiers, "LEAST_DENSE_LISTS", 3)
    made = PhraseTiers(TOKENIZER, 2 * 3 * STATES_PER_PAGE * STATE_BYTES)
    assert [store.free.state_pages for store in made.stores] == [2, 11]
    return made


def forms(tiers: PhraseTiers, starts: list[int]) -> list[int]:
    return [tiers.least_boost(start) for start in starts]


@pytest.mark.parametrize(
    ("memory_bytes", "kinds"),
    [
        (LEAST_DENSE_STATES * STATE_BYTES, [DenseBoost]),
        (LEAST_DENSE_STATES * STATE_BYTES - 1, [DenseBoost, TieredBoost]),
        (2 * 64 * STATES_PER_PAGE * STATE_BYTES, [DenseBoost, TieredBoost]),
        (2 * 64 * STATES_PER_PAGE * STATE_BYTES - 2, [PhraseBoost]),
    ],
)
def test_memory_decides_which_forms_there_are(memory_bytes, kinds):
    tiers = PhraseTiers(TOKENIZER, memory_bytes)
    assert [type(boost) for boost in tiers.boosts] == kinds
    start = tiers.acquire(list_of(SMALL, 0))
    assert tiers.least_boost(start) == 0
    assert tiers.acquire(PhraseList([])) == NO_PHRASES
    tiers.release(start)
    tiers.release(NO_PHRASES)


@pytest.mark.parametrize("memory_bytes", [0, 10_000, 2**50])
def test_impossible_memory_is_refused(memory_bytes):
    with pytest.raises(ValueError, match="bytes for phrase lists are too"):
        PhraseTiers(TOKENIZER, memory_bytes)


def test_lists_of_both_forms_and_none_add_up_side_by_side(tiers):
    chance = random.Random(0)
    lists = [random_boosts(chance, SIZE, most=(8, 150)[number % 2]) for number in range(24)] + [{}]
    labels = [random_labels(chance, SIZE, boosts) for boosts in lists]
    starts = [tiers.acquire(as_list(boosts)) for boosts in lists]
    assert 4 <= sum(forms(tiers, starts)) <= 20, "some of each"
    expected = [
        expected_totals(row, boosts, TOKENIZER.continues_word) for row, boosts in zip(labels, lists, strict=True)
    ]
    cheap, whole = tiers.boosts
    found = totals_along(whole, starts, labels)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-4)
    dense = [number for number, form in enumerate(forms(tiers, starts)) if form == 0]
    of_dense = totals_along(cheap, [starts[number] for number in dense], [labels[number] for number in dense])
    assert torch.equal(of_dense, found[dense])


def test_all_labels_at_once_score_as_one_by_one(tiers):
    chance = random.Random(1)
    lists = [random_boosts(chance, SIZE, most=most) for most in (5, 8, 150, 150)]
    states = torch.tensor([NO_PHRASES, *(tiers.acquire(as_list(boosts)) for boosts in lists)])
    boost = tiers.boosts[-1]
    for _ in range(8):
        look = boost.look(states)
        for label in range(SIZE):
            labels = torch.full_like(states, label)
            arcs = boost.advance(states, labels)
            assert torch.equal(look.scores[:, label], arcs.scores)
            assert torch.equal(look.next_states(labels), arcs.next_states)
        states = boost.advance(states, torch.tensor(chance.choices(range(SIZE), k=len(states)))).next_states
    assert states[0] == NO_PHRASES
    assert boost.advance(states, torch.full_like(states, SIZE)).scores.isfinite().all()  # blank: no harm
    pairs = states[:4].view(2, 2)
    assert boost.advance(pairs, torch.zeros_like(pairs)).scores.shape == boost.final_scores(pairs).shape == (2, 2)
    assert boost.look(states[:0]).scores.shape == (0, SIZE)


def test_a_large_list_is_paged_though_there_is_room(tiers):
    assert forms(tiers, [tiers.acquire(list_of(SMALL, 0)), tiers.acquire(list_of(LARGE, 1))]) == [0, 1]


def test_what_finds_no_dense_page_is_paged_until_one_is_free(tight_tiers):
    first, second, third = (tight_tiers.acquire(list_of(SMALL, number)) for number in range(3))
    assert forms(tight_tiers, [first, second, third]) == [0, 0, 1]
    tight_tiers.release(second)
    assert tight_tiers.acquire(list_of(SMALL, 2)) == third, "a list in use is not stored twice"
    for _ in range(2):
        tight_tiers.release(third)
    fourth = tight_tiers.acquire(list_of(SMALL, 2))
    assert fourth == second, "nobody needs it any more: it takes the page of another one that nobody needs"
    assert tight_tiers.acquire(list_of(SMALL, 0)) == first
    for start in (first, first, fourth):
        tight_tiers.release(start)
    for start in (first, third, fourth):
        with pytest.raises(ValueError, match="is not held"):
            tight_tiers.release(start)


def test_a_large_list_that_nobody_needs_stays_paged(tiers, monkeypatch):
    start = tiers.acquire(list_of(LARGE, 0))
    tiers.release(start)
    monkeypatch.setattr(phrase_store, "PhraseTrie", None)  # would fail if it were built again
    assert tiers.acquire(list_of(LARGE, 0)) == start


def test_a_large_list_takes_dense_pages_where_the_paged_ones_are_taken(tight_tiers):
    held = tight_tiers.acquire(list_of(11 * STATES_PER_PAGE - 60, 0))
    assert tight_tiers.least_boost(held) == 1
    large = tight_tiers.acquire(list_of(STATES_PER_PAGE + 20, 1))
    assert tight_tiers.least_boost(large) == 0
    labels = [1, 2, 1, 1, 3]
    boosts = {(1, (label + 1) % SIZE) + (1,) * ((STATES_PER_PAGE + 20) // 9 - 1): 1.0 for label in range(1, 10)}
    expected = expected_totals(labels, boosts, TOKENIZER.continues_word)
    assert torch.equal(totals_along(tight_tiers.boosts[-1], [large], [labels])[0], expected)


def test_refusals_are_those_of_the_paged_memory(tight_tiers):
    wide = 11 * STATES_PER_PAGE
    with pytest.raises(StreamError, match="accepted: lists that need up to 704 states") as refused:
        tight_tiers.acquire(list_of(wide + 18, 0))
    assert refused.value.kind is StreamErrorKind.INVALID_ARGUMENT
    held = [tight_tiers.acquire(list_of(SMALL, number)) for number in range(2)]
    held.append(tight_tiers.acquire(list_of(wide - 60, 2)))
    assert forms(tight_tiers, held) == [0, 0, 1]
    with pytest.raises(StreamError, match="while other streams hold theirs") as refused:
        tight_tiers.acquire(list_of(LARGE, 3))
    assert refused.value.kind is StreamErrorKind.UNAVAILABLE
    tight_tiers.release(held[0])
    assert tight_tiers.acquire(list_of(SMALL, 4)) == held[0]


def test_lists_that_come_and_go_change_nothing_for_others(tight_tiers):
    chance = random.Random(2)
    lists = [random_boosts(chance, SIZE, most=(4, 40)[number % 2]) for number in range(10)]
    labels = [random_labels(chance, SIZE, boosts, 12) for boosts in lists]
    expected = [
        expected_totals(row, boosts, TOKENIZER.continues_word) for row, boosts in zip(labels, lists, strict=True)
    ]
    boost, live, forms_seen = tight_tiers.boosts[-1], [], set()
    for _ in range(400):
        if len(live) < 5 and chance.random() < 0.5:
            number = chance.randrange(len(lists))
            start = tight_tiers.acquire(as_list(lists[number]))
            forms_seen.add(tight_tiers.least_boost(start))
            live.append({"list": number, "start": start, "state": start, "heard": 0, "total": 0.0})
        for stream in chance.sample(live, k=chance.randint(0, len(live))):
            if stream["heard"] == 12:
                live.remove(stream)
                tight_tiers.release(stream["start"])
                continue
            label = torch.tensor([labels[stream["list"]][stream["heard"]]])
            arcs = boost.advance(torch.tensor([stream["state"]]), label)
            stream["total"] += float(arcs.scores)
            stream["state"], stream["heard"] = int(arcs.next_states), stream["heard"] + 1
            total = stream["total"] + float(boost.final_scores(arcs.next_states))
            assert total == pytest.approx(float(expected[stream["list"]][stream["heard"]]), abs=1e-4)
    assert forms_seen == {0, 1}
