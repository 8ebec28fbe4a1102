"""A compiled graph, and the closure of its epsilon arcs."""

import dataclasses
import itertools
import math
import random
from collections import defaultdict

import kaldifst
import numpy as np
import pytest

from penstock.errors import GraphError
from penstock.scoring.ngram.arpa import Arpa, read_arpa
from penstock.scoring.wfst.building.compile import close, compile_graph
from penstock.scoring.wfst.building.fst_arrays import FstArrays, join_arcs, to_fst
from penstock.scoring.wfst.building.lexicon import Lexicon
from penstock.scoring.wfst.graph_file import ARRAYS, TOPOLOGIES, DecodingGraph
from tests.helpers.decoding_graphs import Arc, naive_closure
from tests.helpers.graph_paths import BestPath, best_path, only, openfst_best_path, random_costs
from tests.helpers.reference.ngram import NgramReference, write_random_arpa
from tests.helpers.reference.word_grammar import WordGrammar
from tests.helpers.word_graphs import (
    compile_words,
    recorded_text,
    synthetic_text,
    synthetic_words,
    ten_thousand_words_arpa,
    word_arpa,
)

V = 3
SPELLINGS = {"a": [(0,)], "b": [(0, 1)], "c": [(0, 1), (1, 1)], "d": [(2,), (2, 0)]}
"""Equal spellings, spellings that begin others, a token twice, and two spellings of a word."""
QUANTUM = 2**-10
"""minimize_encoded rounds each arc's weight to multiples of it."""


def transducer(arcs: list[Arc], states: int) -> FstArrays:
    sources, _, words, weights, targets = zip(*arcs, strict=True)
    return join_arcs(0, np.zeros(states), (sources, 0, words, weights, targets))


def random_epsilons(seed: int, states: int = 14) -> list[Arc]:
    """Arcs to higher states, many of them between the same two; words from below state 7 to above only."""
    chance = random.Random(seed)
    arcs = []
    for _ in range(40):
        source, target = sorted(chance.sample(range(states), 2))
        word = chance.choice((0, 1, 2)) if source < states // 2 <= target else 0
        arcs.append(Arc(source, None, word, chance.randint(-8, 32) / 8, target))
    return arcs


@pytest.mark.parametrize("seed", range(10))
def test_equal_to_following_every_path(seed):
    arcs, states = random_epsilons(seed), 14
    closure = close(transducer(arcs, states))
    for state in range(states):
        rows = slice(closure.offsets[state], closure.offsets[state + 1])
        found = zip(closure.targets[rows], closure.words[rows], closure.weights[rows], strict=True)
        assert list(found) == naive_closure(arcs, state)
    assert closure.weights.dtype == np.float32
    assert {array.dtype for array in (closure.offsets, closure.targets, closure.words)} == {np.dtype(np.int32)}


def test_states_without_epsilon_arcs_reach_themselves():
    closure = close(join_arcs(0, np.zeros(3), (np.zeros(0, int), 0, 0, 0.0, 0)))
    assert closure.offsets.tolist() == [0, 1, 2, 3]
    assert closure.targets.tolist() == [0, 1, 2]
    assert not closure.weights.any() and not closure.words.any()


@pytest.mark.parametrize(
    ("arcs", "message"),
    [
        ([Arc(0, None, 0, 0.0, 0)], "a cycle of epsilon arcs"),
        ([Arc(0, None, 0, 1.0, 1), Arc(1, None, 1, 1.0, 2), Arc(2, None, 0, 1.0, 1)], "a cycle of epsilon arcs"),
        ([Arc(0, None, 1, 0.0, 1), Arc(1, None, 0, 0.0, 2), Arc(2, None, 1, 0.0, 3)], "carries two words"),
    ],
)
def test_what_a_search_cannot_take_is_rejected(arcs, message):
    with pytest.raises(GraphError, match=message):
        close(transducer(arcs, 4))


def tiny_lexicon() -> Lexicon:
    every = [tokens for each in SPELLINGS.values() for tokens in each]
    return Lexicon(
        words=("", *SPELLINGS),
        spelling_words=np.cumsum([0, 0, *map(len, SPELLINGS.values())]).astype(np.int32),
        spelling_offsets=np.cumsum([0, *map(len, every)]).astype(np.int32),
        spelling_tokens=np.array([token for tokens in every for token in tokens], np.int32),
    )


def sentence_costs(lm: NgramReference, max_tokens: int) -> dict[tuple[int, ...], dict[tuple[str, ...], float]]:
    """All sentences by their tokens, each with its cost."""
    grammar = WordGrammar(lm)
    found: dict[tuple[int, ...], dict[tuple[str, ...], float]] = defaultdict(dict)
    for length in range(1, max_tokens + 1):
        for words in itertools.product(SPELLINGS, repeat=length):
            cost = grammar.cost(words)
            for spellings in itertools.product(*(SPELLINGS[word] for word in words)):
                tokens = tuple(itertools.chain(*spellings))
                if len(tokens) <= max_tokens:
                    found[tokens][words] = cost
    return found


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("seed", range(3))
def test_best_sentences_of_every_token_sequence(tmp_path, topology, seed):
    path = tmp_path / "lm.arpa"
    write_random_arpa(path, random.Random(seed), list(SPELLINGS), order=3, with_unknown=False, per_order=10)
    graph = compile_graph(read_arpa(path), tiny_lexicon(), topology, V, "0" * 64).graph
    graph.check()
    sentences = sentence_costs(NgramReference.read(path), max_tokens=4)
    for length in range(1, 5):
        for tokens in itertools.product(range(V), repeat=length):
            # Blanks keep tokens apart; in the compact topology a token of two frames could be two.
            held = 2 if topology == "normal" else 1
            frames = [label for token in tokens for label in (V, *[token] * held)]
            found, wanted = best_path(graph, only(frames, V)), sentences.get(tokens)
            assert math.isfinite(found.cost) == bool(wanted)
            if wanted:
                assert found.cost == pytest.approx(min(wanted.values()), abs=QUANTUM * 6 * length)
                words = tuple(graph.words[word] for word in found.words)
                assert wanted[words] == pytest.approx(min(wanted.values()), abs=QUANTUM * 12 * length)


@pytest.fixture(scope="module")
def small_arpa(tmp_path_factory) -> Arpa:
    chance = random.Random(3)
    lines = [*recorded_text(), *synthetic_text(synthetic_words(120, chance), 300, chance)]
    return word_arpa(lines, tmp_path_factory.mktemp("small") / "lm.arpa")


def check_equal_to_openfst(graph: DecodingGraph, fst: kaldifst.StdVectorFst, costs: np.ndarray) -> BestPath:
    ours, theirs = best_path(graph, costs), openfst_best_path(fst, costs)
    assert ours.cost == pytest.approx(theirs.cost, abs=1e-3)
    assert ours.words == theirs.words
    assert math.isfinite(ours.cost)
    return ours


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_equal_to_the_shortest_path_of_openfst(small_arpa, topology):
    compiled = compile_words(small_arpa, topology)
    fst = to_fst(compiled.fst)
    for seed in range(6):
        check_equal_to_openfst(compiled.graph, fst, random_costs(12, compiled.graph.vocabulary_size, seed))


@pytest.fixture(scope="module")
def large_arpa(tmp_path_factory) -> Arpa:
    return ten_thousand_words_arpa(recorded_text(), tmp_path_factory.mktemp("large") / "lm.arpa")


@pytest.mark.nightly
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_ten_thousand_words(large_arpa, topology):
    """Costs can be equal while words of closures are lost: this graph has them, and they come up."""
    compiled = compile_words(large_arpa, topology)
    graph, fst = compiled.graph, to_fst(compiled.fst)
    graph.check()
    assert len(graph.words) > 10_000
    assert np.count_nonzero(graph.closure_words) > 5_000
    from_closures = set(graph.closure_words.tolist()) - {0}
    came_up = set()
    chance = random.Random(1)
    words = [graph.words[word] for word in sorted(from_closures)]
    for _ in range(2):
        sentence = chance.sample(words, 3)
        tokens = [token for word in sentence for token in graph.spellings(graph.words.index(word))[0]]
        costs = np.full((2 * len(tokens), graph.blank + 1), np.inf, np.float32)
        noise = random_costs(*costs.shape[:1], graph.blank, chance.randrange(1000))
        for frame, label in enumerate(label for token in tokens for label in (token, graph.blank)):
            near = [label, *chance.sample(range(graph.blank + 1), 2)]
            costs[frame, near] = noise[frame, near]
            costs[frame, label] = 0.01
        came_up |= set(check_equal_to_openfst(graph, fst, costs).words)
    assert came_up & from_closures


def test_a_graph_is_the_same_every_time(small_arpa):
    first, second = (compile_words(small_arpa).graph for _ in range(2))
    for field in dataclasses.fields(DecodingGraph):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name))


def test_arcs_are_sorted(small_arpa):
    graph = compile_words(small_arpa, "compact").graph
    sources = np.repeat(np.arange(graph.state_count), np.diff(graph.arc_offsets))
    rows = list(zip(sources, graph.arc_labels, graph.arc_words, graph.arc_targets, strict=True))
    assert rows == sorted(rows)
    assert {getattr(graph, name).dtype for name in ARRAYS} == {np.dtype(np.int32), np.dtype(np.float32)}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_repeat_leads_to_its_own_state(small_arpa, topology):
    graph = compile_words(small_arpa, topology).graph
    sources = np.repeat(np.arange(graph.state_count), np.diff(graph.arc_offsets))
    is_repeat = (graph.arc_targets == sources) & (graph.arc_labels != graph.blank)
    assert not graph.arc_weights[is_repeat].any() and not graph.arc_words[is_repeat].any()
    # every other arc of a token leads to a state that holds it
    entered = graph.arc_targets[~is_repeat & (graph.arc_labels != graph.blank)]
    held = dict(zip(sources[is_repeat].tolist(), graph.arc_labels[is_repeat].tolist(), strict=True))
    labels = graph.arc_labels[~is_repeat & (graph.arc_labels != graph.blank)]
    assert [held[state] for state in entered.tolist()] == labels.tolist()


def test_words_in_no_sentence(tmp_path):
    (tmp_path / "lm.arpa").write_text(
        "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-1\ta\n\n\\2-grams:\n-1\t<s> a\n\n\\end\\\n"
    )
    arpa = read_arpa(tmp_path / "lm.arpa")
    never = arpa._replace(sections=[section._replace(words=section.words[:0]) for section in arpa.sections])
    empty = never._replace(sections=[type(s)(s.words, *(column[:0] for column in s[1:])) for s in never.sections])
    with pytest.raises(GraphError, match="no sentence of the language model"):
        compile_graph(empty._replace(sections=empty.sections[:1]), tiny_lexicon(), "normal", V, "")
