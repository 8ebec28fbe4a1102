"""Slots of the search's states: what a stream takes, and slots that are used again."""

import torch

from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.state import WfstStateStore
from tests.helpers.wfst import Searcher, log_probs, random_graph


def test_a_stream_takes_the_same_memory_with_every_graph():
    for seed, states in ((1, 12), (2, 60)):
        graph = DeviceGraph(random_graph(seed, states=states))
        assert WfstStateStore(graph, 2, WfstSizes()).bytes_per_slot == WfstSizes().bytes_per_stream <= 256_000


def test_a_slot_that_is_used_again_holds_nothing_of_its_last_stream():
    graph = random_graph(5, states=20)
    searcher = Searcher(graph, WfstSizes(64), WfstLimits(8.0))
    first, second = (log_probs(seed, 2, 14, graph.vocabulary_size) for seed in (1, 2))
    searcher.search(first, 4)
    assert searcher.search(second, 4) == Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(second, 4)


def test_paths_that_outgrow_their_memory_agree_with_the_best_one():
    """With room for few nodes the oldest of the best path become stable, and what disagrees is dropped and counted."""
    graph = random_graph(5, states=20)
    scores = log_probs(5, 2, 40, graph.vocabulary_size, sharpness=0.5)
    roomy = Searcher(graph, WfstSizes(64), WfstLimits(20.0))
    expected = roomy.search(scores, 4)
    assert not roomy.dropped
    for sizes in (WfstSizes(64, nodes=40), WfstSizes(64, unstable_nodes=3)):
        searcher = Searcher(graph, sizes, WfstLimits(20.0))
        found = searcher.search(scores, 4)
        assert searcher.dropped > 0 and torch.isfinite(torch.tensor([result.cost for result in found])).all()
        for result, best in zip(found, expected, strict=True):
            assert result.cost >= best.cost - 1e-3 and len(result.pieces) > 10
            frames = [piece.first_frame for piece in result.pieces]
            assert frames == sorted(frames)
