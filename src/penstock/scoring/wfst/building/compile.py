"""Compiles a language model and a lexicon into a decoding graph: T∘min(det(L∘G)) with its epsilon arcs closed."""

from collections.abc import Callable
from typing import NamedTuple

import kaldifst
import numpy as np

from penstock.errors import GraphError
from penstock.scoring.ngram.arpa import Arpa
from penstock.scoring.wfst.building.closure import close
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
