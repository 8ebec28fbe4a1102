"""The search with fixed shapes, as CUDA graphs capture it, equals the search over what lives."""

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from tests.helpers.fake_capture import FakeBuilder, FakeCapture
from tests.helpers.phrases import arena_of
from tests.helpers.wfst import Searcher, log_probs, random_graph

LENGTHS = [12, 7, 10]
SIZES = {"roomy": WfstSizes(64, 256, 64), "tight": WfstSizes(4, 128, 32)}


def drivers():
    return {"no_while_loops": NoWhileLoopsDriver(FakeCapture()), "full_graph": FullGraphDriver(FakeBuilder())}


@pytest.mark.parametrize(("driver", "sizes", "beam"), [("no_while_loops", "roomy", 3.0), ("full_graph", "tight", 50.0)])
def test_equals_the_search_over_what_lives(driver, sizes, beam):
    """In a bucket with an empty row; the same programs for all chunks. No operation waits for the host."""
    graph, limits = random_graph(1, states=20), WfstLimits(beam, skip_blank=0.7)
    scores = log_probs(1, 3, 12, graph.vocabulary_size)
    expected = Searcher(graph, SIZES[sizes], limits).search(scores, 4, LENGTHS)
    captured = Searcher(
        graph, SIZES[sizes], limits, prepare=lambda search: CapturedWfstSearch(search, drivers()[driver], 4, 4)
    )
    assert captured.search(scores, 4, LENGTHS) == expected
    assert captured.search(scores, 3, LENGTHS) == expected


@pytest.mark.parametrize(("driver", "kind"), [("no_while_loops", "words"), ("full_graph", "phrases")])
def test_boosts_equal_those_of_the_search_over_what_lives(driver, kind):
    """Programs follow phrases in any batch that boosts; the eager search only where a stream has some."""
    graph = random_graph(4, states=20)
    scores, table = log_probs(4, 3, 12, graph.vocabulary_size), np.zeros(len(graph.words), np.float32)
    arena, start = arena_of({(0, 1): 2.0, (2,): -1.0}, [False, True, False, True])
    if kind == "words":
        table[1:] = np.linspace(-1, 3, len(table) - 1)
    chosen = {"word_boosts": table, "phrases": (arena, start) if kind == "phrases" else None}
    boosts = StreamBoosts(torch.from_numpy(table)[None], torch.zeros(0, dtype=torch.int64), arena)
    expected = Searcher(graph, SIZES["roomy"]).search(scores, 4, LENGTHS, **chosen)
    captured = Searcher(
        graph, SIZES["roomy"], prepare=lambda search: CapturedWfstSearch(search, drivers()[driver], 4, 4, boosts)
    )
    assert captured.search(scores, 4, LENGTHS, **chosen) == expected
    plain = Searcher(graph, SIZES["roomy"]).search(scores, 4, LENGTHS)
    assert expected != plain == captured.search(scores, 4, LENGTHS)


@pytest.mark.parametrize(
    "sizes", [WfstSizes(16, nodes=16), WfstSizes(16, 256, unstable_nodes=3)], ids=["nodes", "unstable"]
)
def test_dropped_tokens_are_those_of_the_search_over_what_lives(sizes):
    graph, limits = random_graph(5, states=20), WfstLimits(20.0)
    scores = log_probs(5, 3, 12, graph.vocabulary_size, sharpness=0.5)
    live = Searcher(graph, sizes, limits)
    expected = live.search(scores, 1, LENGTHS)
    for chunk_frames in (4, 12):
        captured = Searcher(
            graph, sizes, limits, prepare=lambda search: CapturedWfstSearch(search, drivers()["full_graph"], 4, 4)
        )
        assert captured.search(scores, chunk_frames, LENGTHS) == expected
        assert captured.dropped == live.dropped > 0


def test_long_chunks_are_decoded_in_parts():
    graph = random_graph(1, states=20)
    scores = log_probs(1, 3, 12, graph.vocabulary_size)
    expected = Searcher(graph, SIZES["roomy"]).search(scores, 4, LENGTHS)
    captured = Searcher(
        graph, SIZES["roomy"], prepare=lambda search: CapturedWfstSearch(search, drivers()["full_graph"], 4, 4)
    )
    assert captured.search(scores, 12, LENGTHS) == expected
    assert captured.search(scores, 9, LENGTHS) == expected
