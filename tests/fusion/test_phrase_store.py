"""Lists come and go: counted, kept while there is room, and never felt by the streams of other lists."""

import random
import time

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.decoding_config import DEFAULT_DECODING
from penstock.errors import StreamError, StreamErrorKind
from penstock.fusion import phrase_store
from penstock.fusion.dense_arena import LEAST_DENSE_STATES, DenseArena
from penstock.fusion.phrase_arena import NO_PHRASES, STATES_PER_PAGE, PageCount
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_store import PhraseStore
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
PAGE_AND_ROW_BYTES = 4 * (STATES_PER_PAGE * 28 + 2 * (SIZE + 1))


def store_of(pages: int) -> PhraseStore:
    """Room for `pages` pages of states and as many rows, beside those of NO_PHRASES."""
    store = PhraseStore(TOKENIZER, (pages + 1) * PAGE_AND_ROW_BYTES)
    assert store.free == PageCount(pages, pages)
    return store


def list_of(pages: int, first: int) -> PhraseList:
    """A list of phrases without a common beginning that takes `pages` pages; `first`, 0 .. 3, tells lists apart."""
    labels = range(10 * first, 10 * first + 10)
    states = STATES_PER_PAGE * (pages - 1) + 10
    length, longer = divmod(states, 10)
    return as_list({(label,) * (length + (label - labels[0] < longer)): 1.0 for label in labels})


def test_equal_lists_are_stored_once(monkeypatch):
    store = store_of(4)
    start = store.acquire(PhraseList([("1 2", 1.0), ("3", 2.0)]))
    free = store.free
    monkeypatch.setattr(phrase_store, "PhraseTrie", None)  # would fail if it were built again
    assert store.acquire(PhraseList([("3", 2.0), ("1  2", 1.0)])) == start
    assert store.lists == 1
    assert store.free == free


def test_a_list_is_kept_when_its_last_stream_has_gone(monkeypatch):
    store = store_of(4)
    phrases = list_of(1, first=0)
    start = store.acquire(phrases)
    store.release(start)
    monkeypatch.setattr(phrase_store, "PhraseTrie", None)
    assert store.acquire(phrases) == start


def test_the_list_left_longest_ago_goes_first():
    store = store_of(3)
    lists = [list_of(1, first) for first in range(4)]
    starts = [store.acquire(phrases) for phrases in lists[:3]]
    for which in (1, 0, 2):
        store.release(starts[which])
    store.release(store.acquire(lists[1]))  # now 0 was left longest ago
    assert store.acquire(lists[3]) == starts[0]
    assert store.acquire(lists[1]) == starts[1]
    assert store.acquire(lists[2]) == starts[2]
    assert store.lists == 3


def test_two_streams_of_one_list_release_it_twice():
    store = store_of(1)
    start = store.acquire(list_of(1, first=0))
    store.acquire(list_of(1, first=0))
    store.release(start)
    with pytest.raises(StreamError):
        store.acquire(list_of(1, first=1))
    store.release(start)
    assert store.acquire(list_of(1, first=1)) == start


def test_dense_memory_is_given_back_and_taken_again():
    store = PhraseStore(TOKENIZER, 3 * STATES_PER_PAGE * (12 * SIZE + 4), is_dense=True)
    assert store.free == PageCount(2, 0)
    start = store.acquire(list_of(2, first=0))
    assert store.free == PageCount(0, 0)
    with pytest.raises(StreamError, match="try again later"):
        store.acquire(list_of(1, first=1))
    store.release(start)
    stale = torch.arange(start, start + STATES_PER_PAGE)
    assert store.acquire(list_of(1, first=1)) == start
    arcs = store.boost.advance(stale, torch.zeros_like(stale))
    assert arcs.next_states.ge(0).all()
    assert arcs.next_states.lt(3 * STATES_PER_PAGE).all()
    assert store.boost.look(stale).scores.isfinite().all()


def test_releasing_twice_is_refused():
    store = store_of(2)
    start = store.acquire(list_of(1, first=0))
    store.release(start)
    with pytest.raises(ValueError, match=f"phrase list {start} is not held by any stream"):
        store.release(start)
    with pytest.raises(ValueError, match="not held"):
        store.release(start + 1)
    assert store.acquire(list_of(1, first=0)) == start


def test_no_phrases_can_be_released_any_time():
    store = store_of(2)
    assert store.acquire(PhraseList([])) == NO_PHRASES
    for _ in range(2):
        store.release(NO_PHRASES)
    assert store.lists == 0


def test_memory_full_of_lists_in_use_is_said_and_nothing_is_lost():
    store = store_of(4)
    used, idle = list_of(2, first=0), list_of(1, first=1)
    used_start, idle_start = store.acquire(used), store.acquire(idle)
    store.release(idle_start)
    with pytest.raises(StreamError, match=r"need memory for 192 states.*up to 128 states.*try again later") as caught:
        store.acquire(list_of(3, first=2))
    assert caught.value.kind is StreamErrorKind.UNAVAILABLE
    assert store.lists == 2  # the idle one was not thrown out in vain
    assert store.acquire(idle) == idle_start
    assert store.acquire(used) == used_start


def test_a_list_larger_than_the_memory_is_the_callers_mistake():
    with pytest.raises(StreamError, match=r"need memory for 192 states.*accepted: lists that need up to 128") as caught:
        store_of(2).acquire(list_of(3, first=0))
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT
    crowded = as_list({(first, label): 1.0 for first in range(3) for label in range(SIZE)})
    with pytest.raises(StreamError, match="more than 8 ways; accepted: up to 2 such beginnings") as caught:
        store_of(2).acquire(crowded)
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("memory_bytes", [0, PAGE_AND_ROW_BYTES, 2**50])
def test_impossible_memory_is_refused(memory_bytes, is_dense):
    with pytest.raises(ValueError, match="bytes for phrase lists are too"):
        PhraseStore(TOKENIZER, memory_bytes, is_dense=is_dense)


def test_a_state_left_behind_by_its_list_reads_numbers_in_range():
    store = store_of(4)
    start = store.acquire(list_of(3, first=0))
    stale = torch.arange(start, start + 3 * STATES_PER_PAGE)
    store.release(start)
    store.acquire(as_list({(first, label): 1.0 for first in range(2) for label in range(2, SIZE)}))
    scores = store.boost.look(stale).scores
    arcs = store.boost.advance(stale, torch.zeros_like(stale))
    assert scores.isfinite().all()
    assert arcs.next_states.ge(0).all()
    assert arcs.next_states.lt(5 * STATES_PER_PAGE).all()


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_thousand_phrases_are_ready_soon_and_exact(is_dense):
    chance = random.Random(0)
    tokenizer = NumberTokenizer([label % 2 == 1 for label in range(1024)])
    common = [chance.randrange(1024) for _ in range(30)]
    boosts = {}
    while len(boosts) < 1000:  # few labels begin most words, as in speech
        words = [(chance.choice(common) & ~1, *chance.choices(range(1024), k=chance.randint(0, 3))) for _ in range(3)]
        boosts[sum(words[: chance.randint(1, 3)], ())] = chance.uniform(0.5, 3.0)
    store = PhraseStore(tokenizer, 2**26 if is_dense else 2**23, is_dense=is_dense)
    began = time.process_time()
    start = store.acquire(as_list(boosts))
    assert time.process_time() - began < 5
    labels = random_labels(chance, 1024, boosts, 60)
    found = totals_along(store.boost, [start], [labels])
    torch.testing.assert_close(
        found[0], expected_totals(labels, boosts, tokenizer.continues_word), rtol=1e-6, atol=1e-5
    )


class ComingAndGoing(RuleBasedStateMachine):
    """Streams with lists start, hear labels and end in any order; each adds up as if it were alone."""

    def __init__(self):
        super().__init__()
        self.store = store_of(8)
        self.addresses = self.addresses_now()
        self.lists = []
        for seed in range(12):
            chance = random.Random(seed)
            boosts = random_boosts(chance, SIZE, most=(10, 60)[seed % 2])
            labels = random_labels(chance, SIZE, boosts, 12)
            self.lists.append((boosts, labels, expected_totals(labels, boosts, TOKENIZER.continues_word)))
        self.streams: list[dict] = []

    def addresses_now(self) -> list[int]:
        arena = self.store._arena
        return [tensor.data_ptr() for tensor in (arena.records, arena.rows)]

    @rule(which=st.integers(0, 11))
    def start(self, which):
        try:
            state = self.store.acquire(as_list(self.lists[which][0]))
        except StreamError as error:
            assert error.kind is StreamErrorKind.UNAVAILABLE
            assert self.streams
            return
        self.streams.append({"list": which, "start": state, "state": state, "heard": 0, "total": 0.0})

    @precondition(lambda self: self.streams)
    @rule(count=st.integers(1, 5))
    def hear(self, count):
        for _ in range(count):
            live = [stream for stream in self.streams if stream["heard"] < 12]
            if not live:
                return
            labels = torch.tensor([self.lists[stream["list"]][1][stream["heard"]] for stream in live])
            arcs = self.store.boost.advance(torch.tensor([stream["state"] for stream in live]), labels)
            for stream, score, state in zip(live, arcs.scores.tolist(), arcs.next_states.tolist(), strict=True):
                stream["total"] += score
                stream["state"] = state
                stream["heard"] += 1

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def end(self, data):
        stream = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
        self.store.release(stream["start"])

    @invariant()
    def every_stream_is_as_alone(self):
        if self.streams:
            states = torch.tensor([stream["state"] for stream in self.streams])
            totals = torch.tensor([stream["total"] for stream in self.streams], dtype=torch.float64)
            expected = torch.stack([self.lists[stream["list"]][2][stream["heard"]] for stream in self.streams])
            torch.testing.assert_close(totals + self.store.boost.final_scores(states), expected, rtol=0, atol=1e-4)

    @invariant()
    def memory_is_counted_and_stays_where_it_is(self):
        stored = self.store._by_digest.values()
        used = sum((entry.place.size for entry in stored), PageCount(0, 0))
        assert self.store.free + used == PageCount(8, 8)
        for pages in ([e.place.state_pages for e in stored], [e.place.rows for e in stored]):
            flat = [page for some in pages for page in some]
            assert len(set(flat)) == len(flat)
            assert 0 not in flat
        wanted = [entry.references for entry in stored]
        assert sum(wanted) == len(self.streams)
        assert len(self.store._idle) == wanted.count(0)
        assert self.addresses_now() == self.addresses


TestComingAndGoing = ComingAndGoing.TestCase
TestComingAndGoing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


def test_64_lists_of_a_thousand_long_phrases_fit_in_the_default_memory():
    """The bundled models' 64 labels make ten tokens of a phrase: up to 10,000 states a list."""
    memory_bytes = DEFAULT_DECODING.phrase_memory_mib * 2**20
    assert DenseArena.states_in(memory_bytes, 64) >= LEAST_DENSE_STATES >= 64 * 10_000
    assert DenseArena.states_in(memory_bytes, 1024) < LEAST_DENSE_STATES, "larger vocabularies have paged lists too"
