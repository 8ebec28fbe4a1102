"""Boosts on the fly equal a search of kaldi-decoder over the explicit composition: TLG∘B, and T∘P∘L∘G."""

import random
from functools import cache

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.scoring.boosting.arena import PhraseArena
from penstock.scoring.ngram.arpa import read_arpa
from penstock.scoring.wfst.graph_file import TOPOLOGIES
from tests.helpers.kaldi import kaldi_search
from tests.helpers.phrases import Boosts, arena_of
from tests.helpers.reference.ngram import write_random_arpa
from tests.helpers.reference.phrase_boost import boosted_total
from tests.helpers.reference.wfst import Boosts as ReferenceBoosts
from tests.helpers.reference.wfst import Limits, ReferenceSearch
from tests.helpers.wfst import Searcher, log_probs, random_graph

kaldifst = pytest.importorskip("kaldifst")
from penstock.scoring.wfst.building.compile import compile_graph  # noqa: E402
from penstock.scoring.wfst.building.fst_arrays import EPSILON, FstArrays, from_fst, join_arcs, to_fst  # noqa: E402
from penstock.scoring.wfst.building.grammar import grammar_fst  # noqa: E402
from penstock.scoring.wfst.building.lexicon import Lexicon, Symbols, lexicon_fst  # noqa: E402
from penstock.scoring.wfst.building.topology import compose_topology  # noqa: E402

SPELLINGS = {"a": (0,), "b": (0, 1), "c": (0, 1, 3), "d": (2,), "e": (2, 3), "f": (2, 1, 1)}
CONTINUES_WORD = [False, True, False, True]
V = len(CONTINUES_WORD)
EXACT = WfstLimits(50.0)
QUANTIZATION = 0.02  # minimization rounds weights


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    @cache
    def make(seed: int):
        path = tmp_path_factory.mktemp("arpa") / "random.arpa"
        write_random_arpa(path, random.Random(seed), list(SPELLINGS), 2, with_unknown=False, per_order=12)
        return read_arpa(path)

    return make


def lexicon() -> Lexicon:
    lengths = [len(tokens) for tokens in SPELLINGS.values()]
    return Lexicon(
        words=("", *SPELLINGS),
        spelling_words=np.arange(-1, len(SPELLINGS) + 1).clip(0).astype(np.int32),
        spelling_offsets=np.cumsum([0, *lengths]).astype(np.int32),
        spelling_tokens=np.array([token for tokens in SPELLINGS.values() for token in tokens], np.int32),
    )


def scaled(fst: FstArrays, weight: float) -> FstArrays:
    scale = np.float32(weight)
    return fst._replace(weights=scale * fst.weights, final_weights=scale * fst.final_weights)


def composed(left: FstArrays, right: FstArrays) -> FstArrays:
    first, second = to_fst(left), to_fst(right)
    kaldifst.arcsort(first, "olabel")
    kaldifst.arcsort(second, "ilabel")
    return from_fst(kaldifst.compose(first, second))


def word_automaton(boosts: np.ndarray) -> FstArrays:
    """B: one state that takes every word."""
    words = np.arange(1, len(boosts))
    zeros = np.zeros_like(words)
    return join_arcs(0, np.zeros(1, np.float32), (zeros, words, words, -boosts[1:], zeros))


def phrase_automaton(arena: PhraseArena, start: int) -> FstArrays:
    """P: the arena's states that the list's start reaches."""
    states, arcs = [start], []
    for state in states:
        for token in range(V):
            score, target = (t.item() for t in arena.advance(torch.tensor([state]), torch.tensor([token])))
            if target not in states:
                states.append(target)
            arcs.append((states.index(state), token + 1, token + 1, -score, states.index(target)))
    finals = -arena.final_scores(torch.tensor(states)).numpy()
    return join_arcs(0, finals, tuple(map(np.array, zip(*arcs, strict=True))))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_words_equal_the_composition_with_their_automaton(make, topology):
    """70 utterances at four beams; at the narrowest, kaldi-decoder differs where none of the tokens is final."""
    compared = 0
    for seed in range(5):
        graph, fst = compile_graph(make(seed), lexicon(), topology, V, "0" * 64)
        table = np.random.default_rng(seed).uniform(-1, 3, len(graph.words)).astype(np.float32)
        table[::2] = 0
        explicit = to_fst(composed(scaled(fst, 1 / 3), word_automaton(table)))
        scores = log_probs(seed, 14, 15, V)
        for beam in (4.0, 8.0, 14.0, 17.0):
            searcher = Searcher(graph, WfstSizes(256), WfstLimits(beam), slots=14)
            for row, found in zip(scores, searcher.search(scores, word_boosts=table), strict=True):
                if beam == 4.0:
                    limits, boosts = Limits(beam), ReferenceBoosts(table)
                    reference = ReferenceSearch(graph, limits, boosts=boosts).search(row.numpy())
                    assert found == Searcher.of_reference(reference)
                    if not reference.is_final:
                        continue
                words, cost = kaldi_search(explicit, row.numpy(), beam)
                assert (found.words, found.cost) == (words, pytest.approx(cost, abs=1e-3))
                compared += 1
    assert compared >= 260


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_phrases_of_several_words_equal_the_explicit_composition(make, topology):
    """T∘P∘L∘G of 15 lists."""
    changed = 0
    for seed in range(15):
        chance = random.Random(seed)
        boosts: Boosts = {}
        for _ in range(chance.randint(1, 5)):
            words = chance.choices(list(SPELLINGS), k=chance.randint(1, 3))
            boosts[tuple(token for word in words for token in SPELLINGS[word])] = chance.uniform(-1, 2)
        arena, start = arena_of(boosts, CONTINUES_WORD)
        graph, _ = compile_graph(make(seed), lexicon(), topology, V, "0" * 64)
        symbols = Symbols(V, len(graph.words))
        lg = composed(lexicon_fst(lexicon(), symbols), grammar_fst(make(seed), graph.words, symbols))
        lg = lg._replace(inputs=np.where(lg.inputs > V, EPSILON, lg.inputs).astype(np.int32))
        explicit = compose_topology(composed(phrase_automaton(arena, start), scaled(lg, 1 / 3)), topology, V)
        scores = log_probs(seed, 1, 15, V)
        expected, cost = kaldi_search(to_fst(explicit), scores[0].numpy(), 100.0)
        found = Searcher(graph, WfstSizes(2048), EXACT).search(scores, 4, phrases=(arena, start))[0]
        plain = Searcher(graph, WfstSizes(2048), EXACT).search(scores)[0]
        assert (found.words, found.cost) == (expected, pytest.approx(cost, abs=QUANTIZATION))
        # The path's own cost, less the bonus that reading its pieces from the left gives.
        total = boosted_total([piece.token for piece in found.pieces], boosts, CONTINUES_WORD)
        assert found.cost + total >= plain.cost - QUANTIZATION
        changed += found.words != plain.words
    assert changed > 3


def test_a_repeated_word_earns_its_boost_again_in_the_compact_topology(make):
    """Why boosts are rejected there: one word, held for many frames, is written many times."""
    table = np.zeros(len(SPELLINGS) + 1, np.float32)
    table[1 + list(SPELLINGS).index("d")] = 6.0
    scores = torch.full((1, 9, V + 1), -8.0)
    scores[:, 1:8, 2] = 0.0  # "d", seven frames long
    scores[:, [0, 8], V] = 0.0
    scores = scores.log_softmax(dim=2)
    found = {}
    for topology in ("normal", "compact"):
        graph, _ = compile_graph(make(1), lexicon(), topology, V, "0" * 64)
        found[topology] = Searcher(graph, WfstSizes(256), EXACT).search(scores, word_boosts=table)[0].words
    assert len(found["normal"]) == 1 and len(found["compact"]) == 7


def test_phrases_survive_chunks_and_slots():
    graph = random_graph(4, states=20)
    arena, start = arena_of({(0, 1): 2.0, (2,): -1.0, (1, 3, 0): 1.0}, CONTINUES_WORD)
    scores = log_probs(4, 3, 14, V)
    whole = Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(scores, phrases=(arena, start))
    assert whole != Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(scores)
    for chunk_frames in (1, 3):
        found = Searcher(graph, WfstSizes(64), WfstLimits(8.0)).search(scores, chunk_frames, phrases=(arena, start))
        assert found == whole
