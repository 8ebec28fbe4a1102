"""Compiles a language model and a lexicon into a decoding graph: T∘min(det(L∘G)) with its epsilon arcs closed.

The min-plus closure of epsilon arcs is what each state reaches without a frame, with which word, at what cost.
"""

from collections.abc import Callable
from typing import NamedTuple

import kaldifst
import numpy as np

from penstock.errors import GraphError
from penstock.scoring.ngram.arpa import Arpa
from penstock.scoring.wfst.building.fst_arrays import EPSILON, FstArrays, from_fst, to_fst
from penstock.scoring.wfst.building.grammar import grammar_fst
from penstock.scoring.wfst.building.lexicon import Lexicon, Symbols, lexicon_fst
from penstock.scoring.wfst.building.topology import compose_topology
from penstock.scoring.wfst.graph_file import DecodingGraph, Topology


class CompiledGraph(NamedTuple):
    """A graph, and its transducer for other decoders: input token + 1, blank V + 1, epsilon 0; output the word."""

    graph: DecodingGraph
    fst: FstArrays


def compile_graph(
    arpa: Arpa,
    lexicon: Lexicon,
    topology: Topology,
    vocabulary_size: int,
    tokenizer_sha256: str,
    progress: Callable[[str], None] = lambda line: None,
) -> CompiledGraph:
    """Compiles; `progress` gets a line with the size of every part. GraphError if no sentence is accepted."""
    symbols = Symbols(vocabulary_size, len(lexicon.words))
    lexicon_part, grammar = lexicon_fst(lexicon, symbols), grammar_fst(arpa, lexicon.words, symbols)
    progress(f"lexicon: {len(lexicon.words) - 1:,} words, {lexicon_part}")
    progress(f"grammar: {grammar}")
    lg = _optimize(lexicon_part, grammar, symbols)
    progress(f"lexicon and grammar, minimized: {lg}")
    fst = compose_topology(lg, topology, vocabulary_size)
    progress(f"with the {topology} CTC topology: {fst}")
    graph = _close(fst, lexicon, topology, symbols, tokenizer_sha256)
    progress(f"graph: {graph.describe_size()}")
    return CompiledGraph(graph, fst)


def _optimize(lexicon: FstArrays, grammar: FstArrays, symbols: Symbols) -> FstArrays:
    """min(det(L∘G)) with disambiguation symbols as epsilon, arcs by source. Tropical: best paths keep their costs."""
    lg = kaldifst.compose(to_fst(lexicon), to_fst(grammar))
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    kaldifst.connect(lg)
    arrays = from_fst(lg)
    if not arrays.state_count:
        raise GraphError("no sentence of the language model consists of the graph's words")
    inputs = np.where(arrays.inputs >= symbols.backoff_input, EPSILON, arrays.inputs).astype(np.int32)
    return arrays._replace(inputs=inputs)


def _close(
    fst: FstArrays, lexicon: Lexicon, topology: Topology, symbols: Symbols, tokenizer_sha256: str
) -> DecodingGraph:
    is_epsilon = fst.inputs == EPSILON
    closure, arcs = close(fst.select(is_epsilon)), fst.select(~is_epsilon)
    arcs = arcs.select(np.lexsort((arcs.targets, arcs.outputs, arcs.inputs, arcs.sources)))
    return DecodingGraph(
        topology=topology,
        vocabulary_size=symbols.vocabulary_size,
        tokenizer_sha256=tokenizer_sha256,
        start_state=fst.start,
        arc_offsets=np.searchsorted(arcs.sources, np.arange(fst.state_count + 1)).astype(np.int32),
        arc_labels=arcs.inputs - np.int32(1),
        arc_weights=arcs.weights,
        arc_words=arcs.outputs,
        arc_targets=arcs.targets,
        closure_offsets=closure.offsets,
        closure_targets=closure.targets,
        closure_weights=closure.weights,
        closure_words=closure.words,
        final_weights=fst.final_weights,
        words=lexicon.words,
        spelling_words=lexicon.spelling_words,
        spelling_offsets=lexicon.spelling_offsets,
        spelling_tokens=lexicon.spelling_tokens,
    )


class Closure(NamedTuple):
    """Entries of all states as a CSR; see `DecodingGraph.closure_offsets` and the arrays below it."""

    offsets: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    words: np.ndarray


class _Paths(NamedTuple):
    """The least cost of the paths of one length between two states with one word."""

    origins: np.ndarray
    targets: np.ndarray
    words: np.ndarray
    costs: np.ndarray


def close(epsilons: FstArrays) -> Closure:
    """The closure of a graph's epsilon arcs, outputs being words.

    GraphError for a cycle and for a path with two words: the search takes at most one word in a closure.
    """
    _reject_cycles(epsilons)
    by_source = epsilons.select(np.argsort(epsilons.sources, kind="stable"))
    offsets = np.searchsorted(by_source.sources, np.arange(epsilons.state_count + 1))
    every, zeros = np.arange(epsilons.state_count), np.zeros(epsilons.state_count, np.int64)
    paths = _Paths(every, every, zeros, zeros.astype(np.float64))
    all_paths = [paths]
    while len((paths := _extend(paths, by_source, offsets)).origins):
        all_paths.append(paths)
    entries = _least(_Paths(*(np.concatenate(column) for column in zip(*all_paths, strict=True))))
    return Closure(
        np.searchsorted(entries.origins, np.arange(epsilons.state_count + 1)).astype(np.int32),
        entries.targets.astype(np.int32),
        entries.costs.astype(np.float32),
        entries.words.astype(np.int32),
    )


def _extend(paths: _Paths, epsilons: FstArrays, offsets: np.ndarray) -> _Paths:
    """The paths that are one arc longer."""
    first = offsets[paths.targets]
    counts = offsets[paths.targets + 1] - first
    rows = np.repeat(np.arange(len(counts)), counts)
    arcs = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + first[rows]
    words, new_words = paths.words[rows], epsilons.outputs[arcs].astype(np.int64)
    if ((words > 0) & (new_words > 0)).any():
        raise GraphError("a path of epsilon arcs carries two words")
    longer = _Paths(
        paths.origins[rows],
        epsilons.targets[arcs].astype(np.int64),
        words + new_words,
        paths.costs[rows] + epsilons.weights[arcs].astype(np.float64),
    )
    return _least(longer)


def _least(paths: _Paths) -> _Paths:
    """The cheapest path per (origin, target, word), sorted by these; a state's own entry comes first."""
    is_other = (paths.targets != paths.origins) | (paths.words != 0)
    order = np.lexsort((paths.costs, paths.words, paths.targets, is_other, paths.origins))
    origins, targets, words, _ = (column[order] for column in paths)
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(origins) != 0) | (np.diff(targets) != 0) | (np.diff(words) != 0)
    return _Paths(*(column[order[is_first]] for column in paths))


def _reject_cycles(epsilons: FstArrays) -> None:
    """Takes away states without epsilon arcs until none is left (Kahn 1962, from the ends)."""
    sources, targets = epsilons.sources, epsilons.targets
    while len(sources):
        goes_on = np.zeros(epsilons.state_count, bool)
        goes_on[sources] = True
        stays = goes_on[targets]
        if stays.all():
            raise GraphError("the graph has a cycle of epsilon arcs")
        sources, targets = sources[stays], targets[stays]
