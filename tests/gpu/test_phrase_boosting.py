"""Phrase boosting on a CUDA device: the CPU's scores, no waiting for the host, graphs that see lists added later."""

import random

import pytest
import torch

from penstock.scoring.boosting.cache import PhraseCache
from tests.helpers.phrases import NumberTokenizer, as_list, expected_totals, random_boosts, random_labels

pytestmark = pytest.mark.gpu

SIZE = 40
TOKENIZER = NumberTokenizer([label % 3 == 0 for label in range(SIZE)])


def random_lists(count: int) -> list[dict]:
    chance = random.Random(0)
    return [random_boosts(chance, SIZE, max_phrases=(8, 150)[number % 2]) for number in range(count)]


def totals_of(boost, starts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[B] what all labels [B, U] are worth."""
    totals = torch.zeros(len(starts), device=starts.device)
    for column in labels.unbind(1):
        arcs = boost.advance(starts, column)
        totals, starts = totals + arcs.scores, arcs.next_states
    return totals + boost.final_scores(starts)


def test_scores_are_those_of_the_cpu():
    lists = random_lists(16)
    found = []
    for device in ("cpu", "cuda"):
        cache = PhraseCache(TOKENIZER, 2**22, device)
        boost = cache.automaton
        states = torch.tensor([cache.acquire(as_list(boosts)) for boosts in lists], device=device)
        scores = [boost.score_all(states).scores]
        for label in range(SIZE):
            arcs = boost.advance(states, torch.full_like(states, label))
            scores.append(boost.score_all(arcs.next_states).scores + arcs.scores.unsqueeze(1))
        found.append(torch.stack(scores).cpu())
    assert torch.equal(*found)


def test_a_captured_lookup_sees_lists_that_come_later_and_never_waits():
    lists = random_lists(8)
    chance = random.Random(1)
    rows = [random_labels(chance, SIZE, boosts, 12) for boosts in lists]
    labels = torch.tensor(rows, device="cuda")
    cache = PhraseCache(TOKENIZER, 2**22, "cuda")
    boost = cache.automaton
    starts = torch.zeros(len(lists), dtype=torch.int64, device="cuda")
    totals_of(boost, starts, labels)
    boost.score_all(starts)  # libraries make their handles outside the capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            totals = totals_of(boost, starts, labels)
            boost.score_all(starts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(2):  # the second time from the cache
        held = [cache.acquire(as_list(boosts)) for boosts in reversed(lists)][::-1]
        starts.copy_(torch.tensor(held))
        graph.replay()
        expected = [
            expected_totals(row, boosts, TOKENIZER.continues_word)[-1] for row, boosts in zip(rows, lists, strict=True)
        ]
        torch.testing.assert_close(totals.double().cpu(), torch.stack(expected), rtol=0, atol=1e-4)
        for start in held:
            cache.release(start)
