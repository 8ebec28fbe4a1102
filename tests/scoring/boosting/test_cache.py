"""Lists are added and removed: counted, kept while there is memory, without effect on streams of other lists."""

import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import StreamError, StreamErrorKind
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.scoring.boosting import cache as cache_module
from penstock.scoring.boosting.arena import PAGE_STATES
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import TokenPhrases
from tests.helpers.phrases import NumberTokenizer, as_list, expected_totals, random_boosts, random_labels, totals_along

SIZE = 40
TOKENIZER = NumberTokenizer([label % 3 == 0 for label in range(SIZE)])
PAGE_BYTES = PAGE_STATES * (4 * 3 + 12 + 8 * 16)
"""Three pointers per state and 16 labels per block."""


def cache_of(pages: int) -> PhraseCache:
    """Memory for `pages` pages beside that of NO_PHRASES."""
    cache = PhraseCache(TOKENIZER, (pages + 1) * PAGE_BYTES)
    assert cache.automaton.free_pages == pages
    return cache


def list_of(pages: int, first: int) -> TokenPhrases:
    """A list of phrases without a common beginning that takes `pages` pages; `first`, 0 .. 3, makes lists differ."""
    labels = range(10 * first, 10 * first + 10)
    states = PAGE_STATES * (pages - 1) + 10
    length, longer = divmod(states, 10)
    return as_list({(label,) * (length + (label - labels[0] < longer)): 1.0 for label in labels})


def test_equal_lists_are_stored_once_and_kept_unused(monkeypatch):
    cache = cache_of(4)
    start = cache.acquire(as_list({(1, 2): 1.0, (3,): 2.0}))
    free = cache.automaton.free_pages
    monkeypatch.setattr(cache_module, "PhraseTrie", None)  # would fail if it were built again
    assert cache.acquire(as_list({(3,): 2.0, (1, 2): 1.0})) == start
    assert len(cache) == 1
    assert cache.automaton.free_pages == free
    for _ in range(2):
        cache.release(start)
    assert cache.acquire(as_list({(1, 2): 1.0, (3,): 2.0})) == start


def test_the_least_recently_used_list_goes_first():
    cache = cache_of(3)
    lists = [list_of(1, first) for first in range(4)]
    starts = [cache.acquire(phrases) for phrases in lists[:3]]
    for which in (1, 0, 2):
        cache.release(starts[which])
    cache.release(cache.acquire(lists[1]))  # now 0 is the least recently used
    assert cache.acquire(lists[3]) == starts[0]
    assert cache.acquire(lists[1]) == starts[1]
    assert cache.acquire(lists[2]) == starts[2]
    assert len(cache) == 3


def test_releasing_twice_is_rejected():
    cache = cache_of(2)
    start = cache.acquire(list_of(1, first=0))
    cache.release(start)
    with pytest.raises(ValueError, match=f"phrase list {start} is not held by any stream"):
        cache.release(start)
    with pytest.raises(ValueError, match="not held"):
        cache.release(start + 1)
    assert cache.acquire(list_of(1, first=0)) == start


def test_memory_full_of_used_lists_is_an_error_and_changes_nothing():
    cache = cache_of(4)
    used, unused = list_of(2, first=0), list_of(1, first=1)
    used_start, unused_start = cache.acquire(used), cache.acquire(unused)
    cache.release(unused_start)
    with pytest.raises(StreamError, match=r"need memory for 192 states.*up to 128 states.*try again later") as caught:
        cache.acquire(list_of(3, first=2))
    assert caught.value.kind is StreamErrorKind.UNAVAILABLE
    assert len(cache) == 2  # the unused one was not dropped
    assert cache.acquire(unused) == unused_start
    assert cache.acquire(used) == used_start


def test_a_list_larger_than_the_memory_is_invalid():
    with pytest.raises(StreamError, match=r"need memory for 192 states.*accepted: lists that need up to 128") as caught:
        cache_of(2).acquire(list_of(3, first=0))
    assert caught.value.kind is StreamErrorKind.INVALID_ARGUMENT


def test_a_state_that_outlived_its_list_reads_numbers_in_range():
    cache = cache_of(4)
    start = cache.acquire(list_of(3, first=0))
    stale = torch.arange(start, start + 3 * PAGE_STATES)
    cache.release(start)
    cache.acquire(as_list({(first, label): 1.0 for first in range(2) for label in range(2, SIZE)}))
    scores = cache.automaton.score_all(stale).scores
    transitions = cache.automaton.advance(stale, torch.zeros_like(stale))
    assert scores.isfinite().all()
    assert transitions.next_states.ge(0).all()
    assert transitions.next_states.lt(5 * PAGE_STATES).all()


def test_a_thousand_phrases_are_exact():
    generator = random.Random(0)
    tokenizer = NumberTokenizer([label % 2 == 1 for label in range(1024)])
    common = [generator.randrange(1024) for _ in range(30)]
    boosts = {}
    while len(boosts) < 1000:  # few labels begin most words, as in speech
        words = [
            (generator.choice(common) & ~1, *generator.choices(range(1024), k=generator.randint(0, 3)))
            for _ in range(3)
        ]
        boosts[sum(words[: generator.randint(1, 3)], ())] = generator.uniform(0.5, 3.0)
    cache = PhraseCache(tokenizer, 2**23)
    start = cache.acquire(as_list(boosts))
    labels = random_labels(generator, 1024, boosts, 60)
    found = totals_along(cache.automaton, [start], [labels])
    torch.testing.assert_close(
        found[0], expected_totals(labels, boosts, tokenizer.continues_word), rtol=1e-6, atol=1e-5
    )


class AddingAndRemoving(RuleBasedStateMachine):
    """Streams with lists start, advance and end in any order; each has the scores that it would have alone."""

    def __init__(self):
        super().__init__()
        self.cache = cache_of(8)
        self.addresses = self.addresses_now()
        self.lists = []
        for seed in range(12):
            generator = random.Random(seed)
            boosts = random_boosts(generator, SIZE, max_phrases=(10, 60)[seed % 2])
            labels = random_labels(generator, SIZE, boosts, 12)
            self.lists.append((boosts, labels, expected_totals(labels, boosts, TOKENIZER.continues_word)))
        self.streams: list[dict] = []

    def addresses_now(self) -> list[int]:
        arena = self.cache.automaton
        tensors = (arena.pointers, arena.offsets, arena.final, arena.block_scores, arena.block_next)
        return [tensor.data_ptr() for tensor in tensors]

    @rule(which=st.integers(0, 11))
    def start(self, which):
        try:
            state = self.cache.acquire(as_list(self.lists[which][0]))
        except StreamError as error:
            assert error.kind is StreamErrorKind.UNAVAILABLE
            assert self.streams
            return
        self.streams.append({"list": which, "start": state, "state": state, "labels": 0, "total": 0.0})

    @precondition(lambda self: self.streams)
    @rule(count=st.integers(1, 5))
    def advance(self, count):
        for _ in range(count):
            live = [stream for stream in self.streams if stream["labels"] < 12]
            if not live:
                return
            labels = torch.tensor([self.lists[stream["list"]][1][stream["labels"]] for stream in live])
            transitions = self.cache.automaton.advance(torch.tensor([stream["state"] for stream in live]), labels)
            for stream, score, state in zip(
                live, transitions.scores.tolist(), transitions.next_states.tolist(), strict=True
            ):
                stream["total"] += score
                stream["state"] = state
                stream["labels"] += 1

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def end(self, data):
        stream = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
        self.cache.release(stream["start"])

    @invariant()
    def every_stream_scores_as_alone(self):
        if self.streams:
            states = torch.tensor([stream["state"] for stream in self.streams])
            totals = torch.tensor([stream["total"] for stream in self.streams], dtype=torch.float64)
            expected = torch.stack([self.lists[stream["list"]][2][stream["labels"]] for stream in self.streams])
            torch.testing.assert_close(totals + self.cache.automaton.final_scores(states), expected, rtol=0, atol=1e-4)

    @invariant()
    def pages_are_counted_and_addresses_stay(self):
        stored = self.cache._by_phrases.values()
        pages = [page for entry in stored for page in entry.pages]
        assert self.cache.automaton.free_pages + len(pages) == 8
        assert len(set(pages)) == len(pages)
        assert 0 not in pages
        references = [entry.references for entry in stored]
        assert sum(references) == len(self.streams)
        assert len(self.cache._unused) == references.count(0)
        assert self.addresses_now() == self.addresses


TestAddingAndRemoving = AddingAndRemoving.TestCase
TestAddingAndRemoving.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.parametrize(("vocabulary_size", "tokens"), [(64, (10, 10)), (1024, (2, 6)), (8192, (2, 5))])
def test_64_lists_of_a_thousand_phrases_fit_in_the_default_memory(vocabulary_size, tokens):
    """With 64 labels a phrase has about ten tokens, with more labels fewer."""
    generator = random.Random(0)
    cache = PhraseCache(NumberTokenizer([label % 2 == 1 for label in range(vocabulary_size)]), 2**26)
    pages = cache.automaton.free_pages
    boosts = {
        tuple(generator.choices(range(vocabulary_size), k=generator.randint(*tokens))): generator.uniform(0.5, 3.0)
        for _ in range(1000)
    }
    cache.acquire(as_list(boosts))
    used = pages - cache.automaton.free_pages
    assert 64 * used <= pages * DEFAULT_DECODING.phrase_memory_mib * 2**20 // 2**26
