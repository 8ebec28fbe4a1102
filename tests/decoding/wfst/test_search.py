"""The search over a decoding graph equals the plain search bit for bit, and kaldi-decoder within the same beam."""

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.search import WfstSearch
from penstock.errors import GraphError, SettingError
from tests.helpers.decoding_graphs import Arc, make_graph
from tests.helpers.kaldi import kaldi_fst, kaldi_search
from tests.helpers.reference.wfst import Limits, ReferenceSearch
from tests.helpers.wfst import Searcher, log_probs, random_arcs, random_graph

TIGHT = WfstSizes(max_active=4)
"""So small that rows are narrowed, tokens dropped, and cells of the hash table contested."""


def limits_of(sizes: WfstSizes, beam: float) -> Limits:
    return Limits(beam, sizes.max_active, sizes.arcs, sizes.hash_cells)


def plain(graph, scores, sizes: WfstSizes, beam: float):
    return Searcher.of_reference(ReferenceSearch(graph, limits_of(sizes, beam)).search(scores.numpy()))


@pytest.mark.parametrize("sizes", [WfstSizes(64), TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("beam", [1.0, 4.0, 50.0])
def test_equals_the_plain_search(sizes, beam):
    found, expected = [], []
    for seed in range(12):
        graph = random_graph(seed)
        scores = log_probs(seed, 1, 12, graph.vocabulary_size)
        found += Searcher(graph, sizes, WfstLimits(beam)).search(scores)
        expected.append(plain(graph, scores[0], sizes, beam))
    assert found == expected
    assert sum(len(result.words) for result in found) > 20
    assert any(result.narrowed for result in found) == (sizes is TIGHT)


def test_rows_that_are_narrowed_equal_the_plain_search():
    graph = random_graph(3, states=40, vocabulary=6)
    scores = log_probs(3, 5, 20, graph.vocabulary_size, sharpness=0.3)
    found = Searcher(graph, TIGHT, WfstLimits(50.0), slots=5).search(scores)
    assert found == [plain(graph, row, TIGHT, 50.0) for row in scores]
    assert all(result.narrowed for result in found)


@pytest.mark.parametrize("sizes", [WfstSizes(64), TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("chunk_frames", [1, 2, 5, 7])
def test_chunks_equal_the_whole(sizes, chunk_frames):
    for seed in range(4):
        graph = random_graph(seed, states=20)
        scores = log_probs(seed, 3, 19, graph.vocabulary_size)
        whole = Searcher(graph, sizes, WfstLimits(6.0)).search(scores)
        assert Searcher(graph, sizes, WfstLimits(6.0)).search(scores, chunk_frames) == whole


@pytest.mark.parametrize("sizes", [WfstSizes(64), TIGHT], ids=["roomy", "tight"])
def test_rows_of_a_batch_equal_rows_alone(sizes):
    graph, lengths = random_graph(5, states=20), [9, 0, 17, 13]
    scores = log_probs(5, 4, 17, graph.vocabulary_size)
    together = Searcher(graph, sizes, WfstLimits(6.0)).search(scores, 4, lengths)
    alone = [
        Searcher(graph, sizes, WfstLimits(6.0)).search(row[None, :length])[0]
        for row, length in zip(scores, lengths, strict=True)
        if length
    ]
    assert [together[0], *together[2:]] == alone


def test_equals_kaldi_decoder():
    compared = words = 0
    for seed in range(15):
        arcs, finals = random_arcs(seed)
        fst, graph = kaldi_fst(arcs, finals, 1 / 3), random_graph(seed)
        scores = log_probs(seed, 1, 15, graph.vocabulary_size)
        for beam in (1.0, 3.0, 8.0, 50.0):
            reference = ReferenceSearch(graph, Limits(beam)).search(scores[0].numpy())
            if not reference.is_final:  # kaldi-decoder may hold a final token from beyond the last frame's beam
                continue
            expected, cost = kaldi_search(fst, scores[0].numpy(), beam)
            found = Searcher(graph, WfstSizes(64), WfstLimits(beam)).search(scores)[0]
            assert found.words == reference.words == expected
            assert found.cost == pytest.approx(cost, abs=1e-3)
            compared, words = compared + 1, words + len(expected)
    assert compared > 50 and words > 250


@pytest.mark.parametrize("chunk_frames", [1, 3, 20])
def test_runs_of_blanks_are_skipped_except_their_first_frame(chunk_frames):
    graph = random_graph(2)
    scores = log_probs(2, 1, 20, graph.vocabulary_size)
    scores[:, :, graph.blank] += 2.0
    scores = scores.log_softmax(dim=2)
    is_blank = scores[0, :, graph.blank] >= np.log(0.6)
    is_taken = ~(is_blank & torch.cat([torch.tensor([False]), is_blank[:-1]]))
    assert 10 < is_taken.sum() < 20
    limits = WfstLimits(8.0, skip_blank=0.6)
    found = Searcher(graph, WfstSizes(64), limits).search(scores, chunk_frames)[0]
    expected = Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(scores[:, is_taken])[0]
    frames = is_taken.nonzero().squeeze(1).tolist()
    moved = [p._replace(first_frame=frames[p.first_frame], last_frame=frames[p.last_frame]) for p in expected.pieces]
    assert found == expected._replace(pieces=moved)


def test_a_penalty_is_taken_off_blank():
    graph = random_graph(7)
    scores = log_probs(7, 1, 12, graph.vocabulary_size)
    changed = scores.clone()
    changed[:, :, graph.blank] -= 0.75
    found = Searcher(graph, WfstSizes(64), WfstLimits(8.0, blank_penalty=0.75)).search(scores)
    expected = Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(changed)
    assert found == expected


def test_graphs_that_cannot_be_searched_are_rejected():
    graph = random_graph(1, states=40, vocabulary=30)
    with pytest.raises(SettingError, match=r"wfst_max_active is 1, but a state of the graph has \d+ arcs; accepted"):
        WfstSearch(DeviceGraph(graph), WfstSizes(max_active=1))
    dead_end = make_graph([Arc(0, 2, 0, 0.0, 1)], {1: 0.0}, 2, {"a": [[0]]})
    with pytest.raises(GraphError, match="state 1 of the graph cannot take a frame"):
        DeviceGraph(dead_end)
