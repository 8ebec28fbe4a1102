"""Slots of the search's states: what a stream takes, and slots that are used again."""

import math

import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.device_graph import MEMORY_PER_FILE, DeviceGraph
from penstock.decoding.wfst.state import WfstStateStore
from tests.helpers.wfst import Searcher, log_probs, random_graph


def test_a_stream_takes_the_same_memory_with_every_graph():
    for seed, states in ((1, 12), (2, 60)):
        graph = DeviceGraph(random_graph(seed, states=states))
        assert WfstStateStore(graph, 2, WfstSizes()).bytes_per_slot == WfstSizes().bytes_per_stream <= 256_000


def test_a_graph_takes_no_more_than_was_checked_before():
    graph = random_graph(1, states=300)
    assert 1.5 * graph.array_bytes < DeviceGraph(graph).array_bytes <= MEMORY_PER_FILE * graph.array_bytes


def test_a_slot_that_is_used_again_holds_nothing_of_its_last_stream():
    graph = random_graph(5, states=20)
    searcher = Searcher(graph, WfstSizes(64), WfstLimits(8.0))
    first, second = (log_probs(seed, 2, 14, graph.vocabulary_size) for seed in (1, 2))
    searcher.search(first, 4)
    assert searcher.search(second, 4) == Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(second, 4)


FEW_NODES = {"nodes": WfstSizes(64, nodes=40), "unstable": WfstSizes(64, unstable_nodes=3)}
"""Sizes at which the paths of `crowded_scores` outgrow their memory."""


def crowded_scores(graph, rows: int) -> torch.Tensor:
    return log_probs(5, rows, 40, graph.vocabulary_size, sharpness=0.5)


@pytest.mark.parametrize("sizes", FEW_NODES.values(), ids=FEW_NODES)
def test_paths_that_outgrow_their_memory_agree_with_the_best_one(sizes):
    """With room for few nodes the oldest of the best path become stable, and what disagrees is dropped and counted.

    As if each frame were a chunk, whatever the chunks and the batch.
    """
    graph = random_graph(5, states=20)
    scores = crowded_scores(graph, 3)
    roomy = Searcher(graph, WfstSizes(64), WfstLimits(20.0))
    expected = roomy.search(scores)
    assert not roomy.dropped
    by_frame = Searcher(graph, sizes, WfstLimits(20.0))
    found = by_frame.search(scores, 1)
    assert by_frame.dropped > 0
    for chunk_frames in (3, 40):
        searcher = Searcher(graph, sizes, WfstLimits(20.0))
        assert (searcher.search(scores, chunk_frames), searcher.dropped) == (found, by_frame.dropped)
    alone = [Searcher(graph, sizes, WfstLimits(20.0)).search(row[None], 7)[0] for row in scores]
    assert alone == found
    for result, best in zip(found, expected, strict=True):
        assert best.cost - 1e-3 <= result.cost < math.inf and len(result.pieces) > 10
        frames = [piece.first_frame for piece in result.pieces]
        assert frames == sorted(frames)


@pytest.mark.parametrize(
    ("sizes", "seeds"),
    [
        ("nodes", (0,)),
        ("unstable", (1,)),
        *(pytest.param(name, (0, 1), marks=pytest.mark.nightly) for name in FEW_NODES),
    ],
)
def test_a_crowded_segment_may_end_with_its_last_frame_or_behind_it(sizes, seeds):
    graph = random_graph(5, states=20)
    for seed in seeds:
        scores = log_probs(seed, 3, 20, graph.vocabulary_size, sharpness=0.5)
        searcher = Searcher(graph, FEW_NODES[sizes], WfstLimits(20.0))
        expected = searcher.search(scores, 1, ends_apart=True)
        assert searcher.dropped > 0
        for chunk_frames, ends_apart in ((1, False), (6, False), (20, False), (20, True)):
            assert searcher.search(scores, chunk_frames, ends_apart=ends_apart) == expected
        lengths = [20, 9, 14]
        found = [searcher.search(scores, chunk_frames, lengths) for chunk_frames in (1, 6, 20)]
        alone = [searcher.search(row[None, :length], 5)[0] for row, length in zip(scores, lengths, strict=True)]
        assert found == [alone] * 3
