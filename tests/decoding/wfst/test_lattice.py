"""Alternatives equal all word sequences of all paths within the lattice beam, and depend on nothing else."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst import lattice
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.device_graph import NO_PIECE
from penstock.decoding.wfst.lattice import Node, PathStart
from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.graphs.full_graph import FullGraphDriver
from penstock.scoring.wfst.graph_file import TOPOLOGIES, DecodingGraph
from tests.helpers.decoding_graphs import two_word_graph
from tests.helpers.fake_capture import FakeBuilder
from tests.helpers.openfst_text import word_sequences_of_text
from tests.helpers.wfst import Alternative, Searcher, log_probs, random_graph

ALL = 10_000
EXACT = WfstLimits(50.0, lattice_beam=6.0)


class WordSequence(NamedTuple):
    cost: float
    """The cost of its best path."""
    words: tuple[int, ...]


def word_sequences(
    graph: DecodingGraph,
    log_probs: np.ndarray,
    beam: float,
    lm_weight: float = 1 / 3,
    word_boosts: np.ndarray | None = None,
) -> list[WordSequence]:
    """In order of cost; none where no path ends in a final state. log_probs: [T, V + 1], blank last.

    Forwards each state has the cost of each word sequence to it. Sequences are left out only where even the best way
    from there to the end, known from a pass backwards, is beyond the beam.
    """
    boosts = np.zeros(len(graph.words)) if word_boosts is None else word_boosts.astype(np.float64)
    weight = float(np.float32(lm_weight))
    arcs = _Ways(graph.arc_offsets, graph.arc_targets, graph.arc_words, weight * graph.arc_weights)
    closure = _Ways(graph.closure_offsets, graph.closure_targets, graph.closure_words, weight * graph.closure_weights)
    # 1) backwards: the least cost to the end from before each pass, [S]
    passes = [(closure, np.zeros(len(graph.closure_targets)))]
    for scores in np.asarray(log_probs, np.float64):
        passes += [(arcs, -scores[graph.arc_labels]), (closure, np.zeros(len(graph.closure_targets)))]
    after = [weight * graph.final_weights.astype(np.float64)]
    for ways, costs in reversed(passes):
        ahead = np.full(graph.state_count, np.inf)
        np.minimum.at(ahead, ways.sources, ways.weights - boosts[ways.words] + costs + after[-1][ways.targets])
        after.append(ahead)
    after.reverse()
    limit = after[0][graph.start_state] + beam
    # 2) forwards: costs of word sequences by state
    reached: dict[int, dict[tuple[int, ...], float]] = {graph.start_state: {(): 0.0}}
    for (ways, costs), ahead in zip(passes, after[1:], strict=True):
        before, reached = reached, {}
        for state, found in before.items():
            for entry in range(ways.offsets[state], ways.offsets[state + 1]):
                word, target = int(ways.words[entry]), int(ways.targets[entry])
                more = ways.weights[entry] - boosts[word] + costs[entry]
                for words, cost in found.items():
                    total = cost + more
                    if total + ahead[target] <= limit:
                        extended = (*words, word) if word else words
                        of_target = reached.setdefault(target, {})
                        of_target[extended] = min(total, of_target.get(extended, np.inf))
    # 3) the best of each
    best: dict[tuple[int, ...], float] = {}
    for state, found in reached.items():
        for words, cost in found.items():
            best[words] = min(cost + after[-1][state], best.get(words, np.inf))
    return sorted(WordSequence(float(cost), words) for words, cost in best.items() if cost <= limit)


class _Ways:
    """Entries of a CSR, with their sources."""

    def __init__(self, offsets: np.ndarray, targets: np.ndarray, words: np.ndarray, weights: np.ndarray):
        self.offsets, self.targets, self.words, self.weights = offsets, targets, words, weights.astype(np.float64)
        self.sources = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def check_equal(found: list[Alternative], expected: list[WordSequence]) -> None:
    """The same words at the same costs; those of nearly equal cost in any order."""
    assert [one.cost for one in found] == pytest.approx([one.cost for one in expected], abs=1e-3)
    assert {one.words for one in found} == {one.words for one in expected}
    costs = {one.words: one.cost for one in expected}
    for one in found:
        assert one.cost == pytest.approx(costs[one.words], abs=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_equal_all_word_sequences_of_all_paths(seed):
    graph = two_word_graph() if seed == 0 else random_graph(seed)
    scores = log_probs(seed, 1, 7, graph.vocabulary_size)
    expected = word_sequences(graph, scores[0].numpy(), EXACT.lattice_beam)
    searcher = Searcher(graph, WfstSizes(64), EXACT)
    best = searcher.search(scores, 3, n_best=[ALL])[0]
    found = searcher.alternatives(0)
    check_equal(found, expected)
    assert len(expected) > 3 and (list(found[0].words), found[0].pieces, found[0].cost) == best[:3]
    text = searcher.ended[0].lattice.openfst_text()
    of_text = word_sequences_of_text(text, graph.words)
    least = {one.words: one.cost for one in expected}
    assert {words: of_text[words] for words in least} == pytest.approx(least, abs=1e-3)
    assert all(
        cost > found[0].cost + EXACT.lattice_beam - 1e-3 for words, cost in of_text.items() if words not in least
    )
    # fewer are the first of all
    searcher.search(scores, 3, n_best=[3])
    assert searcher.alternatives(0) == found[:3]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_equal_all_word_sequences_of_a_compiled_graph(topology, tmp_path):
    """A trigram model of the bundled recordings, a beam as served: 1 frame in 3 is as likely another label."""
    pytest.importorskip("kaldifst")
    from tests.helpers.graph_paths import random_costs
    from tests.helpers.word_graphs import compile_words, recorded_text, word_arpa

    graph, _ = compile_words(word_arpa(recorded_text(), tmp_path / "words.arpa"), topology)
    limits = WfstLimits(14.0, lattice_beam=4.0)
    searcher = Searcher(graph, WfstSizes(), limits)
    scores = torch.stack([torch.from_numpy(-random_costs(18, graph.vocabulary_size, seed)) for seed in range(3)])
    searcher.search(scores, 7, n_best=[32] * 3)
    for row, one in enumerate(scores):
        expected = word_sequences(graph, one.numpy(), limits.lattice_beam)
        assert len(expected) > 8
        check_equal(searcher.alternatives(row), expected[:32])


def everything(searcher: Searcher, rows: list[int]) -> list:
    return [(searcher.alternatives(row), searcher.ended[row].lattice.openfst_text()) for row in rows]


SIZES = {"roomy": WfstSizes(64), "tight": WfstSizes(4), "crowded": WfstSizes(64, nodes=40)}
"""With few tokens, losers are left out; with few nodes, tokens are dropped."""
LENGTHS = [13, 9, 16]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_chunks_batches_slots_and_pruning_do_not_matter(sizes, monkeypatch):
    """Some rows of a batch want alternatives; best paths are those of a search without."""
    graph, limits = random_graph(5, states=20), WfstLimits(8.0, skip_blank=0.7, lattice_beam=6.0)
    scores = log_probs(5, 3, 16, graph.vocabulary_size, sharpness=0.7)
    searcher = Searcher(graph, sizes, limits)
    plain = searcher.search(scores, 4, LENGTHS)
    assert searcher.ended == {}
    assert searcher.search(scores, 4, LENGTHS, n_best=[20, 0, 20]) == plain
    expected = everything(searcher, [0, 2])
    assert all(len(alternatives) > 5 for alternatives, _ in expected)
    for chunk_frames in (1, 16):
        assert searcher.search(scores, chunk_frames, LENGTHS, n_best=[20, 0, 20]) == plain
        assert everything(searcher, [0, 2]) == expected
    monkeypatch.setattr(lattice, "NEW_LINKS", 0)
    for row, length, one in ((0, LENGTHS[0], expected[0]), (2, LENGTHS[2], expected[1])):
        assert searcher.search(scores[row : row + 1, :length], 3, n_best=[20]) == [plain[row]]
        assert everything(searcher, [0]) == [one]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_fixed_shapes_give_the_same(sizes):
    graph, limits = random_graph(5, states=20), WfstLimits(8.0, skip_blank=0.7, lattice_beam=6.0)
    scores = log_probs(5, 3, 16, graph.vocabulary_size, sharpness=0.7)
    sizes = sizes._replace(max_active=min(sizes.max_active, 16), nodes=min(sizes.nodes, 256))
    live = Searcher(graph, sizes, limits)
    best = live.search(scores, 4, LENGTHS, n_best=[20, 0, 20])
    captured = Searcher(
        graph, sizes, limits, prepare=lambda search: CapturedWfstSearch(search, FullGraphDriver(FakeBuilder()), 4, 4)
    )
    assert captured.search(scores, 7, LENGTHS, n_best=[20, 0, 20]) == best
    assert everything(captured, [0, 2]) == everything(live, [0, 2])
    assert captured.search(scores, 4, LENGTHS) == best


@pytest.mark.parametrize("sizes", [SIZES["roomy"], SIZES["crowded"]], ids=["roomy", "crowded"])
def test_paths_of_long_segments_differ_in_the_last_frames(sizes, monkeypatch):
    """Found paths are among all, at the cost of the whole path; chunks and pruning do not matter here either."""
    graph, limits = random_graph(5, states=20), WfstLimits(8.0, lattice_beam=3.0)
    scores = log_probs(5, 1, 16, graph.vocabulary_size, sharpness=0.7)
    searcher = Searcher(graph, sizes, limits)
    best = searcher.search(scores, 4, n_best=[ALL])[0]
    expected = {one.words: one.cost for one in searcher.alternatives(0)}
    monkeypatch.setattr(lattice, "MAX_FRAMES", 5)
    assert searcher.search(scores, 4, n_best=[ALL]) == [best]
    found, text = everything(searcher, [0])[0]
    assert 3 < len(found) < len(expected) and len(searcher.ended[0].lattice._levels) == 5
    assert (list(found[0].words), found[0].pieces, found[0].cost) == best[:3]
    assert all(one.cost >= expected[one.words] - 1e-3 for one in found)
    assert len({one.words for one in found}) == len(found)
    of_text = word_sequences_of_text(text, graph.words)
    assert {one.words: of_text[one.words] for one in found} == pytest.approx(
        {one.words: one.cost for one in found}, abs=1e-3
    )
    for chunk_frames, new_links in ((1, 4096), (16, 4096), (3, 0)):
        monkeypatch.setattr(lattice, "NEW_LINKS", new_links)
        searcher.search(scores, chunk_frames, n_best=[ALL])
        assert everything(searcher, [0]) == [(found, text)]


def test_long_segments_can_be_sent_to_other_processes():
    start = PathStart()
    for frame in range(5000):
        start = PathStart(Node(NO_PIECE, 1, frame, -1, 0.0), start, -1, 0.0)
    zeros, costs = np.zeros(1, np.int32), np.zeros(1)
    level = lattice.Level(5000, zeros, zeros, zeros + NO_PIECE, zeros, zeros, zeros != 0, costs, costs)
    segment = SegmentLattice([start], [level], costs, 5.0, 1.0, ["<eps>", "yes"])
    copy = pickle.loads(pickle.dumps(segment))
    assert copy.best(2) == segment.best(2) and len(copy.best(2)[0].nodes) == 5000
    assert copy.openfst_text() == segment.openfst_text()


def test_losers_that_are_left_out_take_their_words_with_them():
    """All found paths are true, and the best are found first."""
    graph, limits = random_graph(5, states=20), WfstLimits(50.0, lattice_beam=6.0)
    scores = log_probs(5, 1, 7, graph.vocabulary_size)
    expected = {one.words: one.cost for one in word_sequences(graph, scores[0].numpy(), 9.0)}
    searcher = Searcher(graph, WfstSizes(8), limits)
    searcher.search(scores, n_best=[ALL])
    found = searcher.alternatives(0)
    assert 3 < len(found) < len(expected)
    assert all(one.cost >= expected[one.words] - 1e-3 for one in found)
    assert [one.cost for one in found] == sorted(one.cost for one in found)


def test_boosts_count():
    graph = random_graph(3)
    boosts = np.zeros(len(graph.words), np.float32)
    boosts[1:] = np.linspace(-1, 2, len(boosts) - 1)
    scores = log_probs(3, 1, 7, graph.vocabulary_size)
    expected = word_sequences(graph, scores[0].numpy(), EXACT.lattice_beam, word_boosts=boosts)
    searcher = Searcher(graph, WfstSizes(64), EXACT)
    searcher.search(scores, 2, word_boosts=boosts, n_best=[ALL])
    check_equal(searcher.alternatives(0), expected)
    acoustic = [sum(piece.score for piece in one.pieces) for one in searcher.alternatives(0)]
    assert all(
        -one.acoustic_cost <= total + 1e-4 for one, total in zip(searcher.alternatives(0), acoustic, strict=True)
    )
