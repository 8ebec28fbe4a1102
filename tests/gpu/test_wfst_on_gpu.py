"""The search over a decoding graph on a real device: the words and times of the CPU, and no waiting inside a chunk."""

import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.graphs.select import missing_for_while_nodes, select_driver
from penstock.kernels.capability import FUSED, TORCH, why_unavailable
from tests.helpers.wfst import Searcher, log_probs, random_graph

pytestmark = pytest.mark.gpu

LENGTHS = [12, 7, 10]
SIZES = {"roomy": WfstSizes(64, 256, 64), "tight": WfstSizes(4, 128, 32)}


@pytest.fixture(params=["no_graphs", "no_while_loops", "full_graph"])
def prepare(request):
    obstacle = missing_for_while_nodes() if request.param == "full_graph" else None
    if obstacle:
        pytest.skip(obstacle)
    if request.param == "no_graphs":
        return lambda search: search
    driver = select_driver(request.param, "cuda").driver
    return lambda search: CapturedWfstSearch(search, driver, 4, 4)


@pytest.fixture(params=[TORCH, FUSED])
def kernels(request):
    obstacle = why_unavailable("cuda") if request.param == FUSED else None
    if obstacle:
        pytest.skip(obstacle)
    return request.param


@pytest.mark.parametrize(("sizes", "beam"), [("roomy", 3.0), ("tight", 50.0)])
def test_equals_the_cpu(prepare, kernels, sizes, beam):
    graph, limits = random_graph(1, states=20), WfstLimits(beam, skip_blank=0.7)
    scores = log_probs(1, 3, 12, graph.vocabulary_size)
    expected = Searcher(graph, SIZES[sizes], limits).search(scores, 4, LENGTHS)
    searcher = Searcher(graph, SIZES[sizes], limits, device="cuda", prepare=prepare, kernels=kernels)
    found = searcher.search(scores, 4, LENGTHS)
    assert found == expected  # integer atomics alone: any order of threads gives the same bits


@pytest.mark.parametrize("sizes", ["roomy", "tight"])
def test_alternatives_equal_the_cpu(prepare, kernels, sizes):
    graph, limits = random_graph(1, states=20), WfstLimits(8.0, lattice_beam=6.0)
    scores = log_probs(1, 3, 12, graph.vocabulary_size)
    here = Searcher(graph, SIZES[sizes], limits)
    there = Searcher(graph, SIZES[sizes], limits, device="cuda", prepare=prepare, kernels=kernels)
    wanted = [10, 0, 10]
    assert there.search(scores, 4, LENGTHS, n_best=wanted) == here.search(scores, 4, LENGTHS, n_best=wanted)
    for row in (0, 2):
        assert there.alternatives(row) == here.alternatives(row)
        assert there.ended[row].lattice.openfst_text() == here.ended[row].lattice.openfst_text()


def test_a_full_batch_over_a_larger_graph_equals_the_cpu(kernels):
    """Many blocks of arcs per row, in rows of different lengths, with words on closure arcs."""
    graph, sizes, limits = random_graph(7, states=200, vocabulary=40, words=50), WfstSizes(256), WfstLimits(12.0)
    scores, lengths = log_probs(7, 8, 24, graph.vocabulary_size, sharpness=1.0), [24, 3, 17, 0, 24, 9, 1, 20]
    expected = Searcher(graph, sizes, limits, slots=8).search(scores, 8, lengths)
    assert any(result.narrowed for result in expected)
    found = Searcher(graph, sizes, limits, slots=8, device="cuda", kernels=kernels).search(scores, 8, lengths)
    assert found == expected


def test_a_chunk_never_waits_for_the_host(prepare, kernels):
    graph = random_graph(1, states=20)
    scores = log_probs(1, 3, 4, graph.vocabulary_size).cuda()
    searcher = Searcher(graph, SIZES["roomy"], device="cuda", prepare=prepare, kernels=kernels)
    searcher.search(scores)  # libraries load, and allocate
    slots = torch.arange(3, device="cuda")
    lengths, is_end = torch.full_like(slots, 4), torch.zeros_like(slots, dtype=torch.bool)
    states = searcher.store.gather(slots)
    torch.cuda.set_sync_debug_mode("error")
    try:
        searcher.search_.decode(scores, lengths, is_end, states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
