"""Small decoding graphs from lists of arcs, with a closure computed path by path, and a search of all paths."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.model.bundle_files import sha256_of
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.ngram.arpa import write_arpa
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.io import read_token_names
from penstock.scoring.wfst.graph_file import DecodingGraph, Topology, write_graph

TOKENIZER_SHA256 = "0" * 64


class Arc(NamedTuple):
    """One arc. label None: epsilon; word 0: none; weight: a cost in nats."""

    source: int
    label: int | None
    word: int
    weight: float
    target: int


def make_graph(
    arcs: Sequence[Arc],
    finals: Mapping[int, float],
    vocabulary_size: int,
    spellings: Mapping[str, Sequence[Sequence[int]]],
    topology: Topology = "normal",
) -> DecodingGraph:
    """The graph of `arcs` from state 0. Word w is the w-th key of `spellings`, counted from 1."""
    states = 1 + max(max(arc.source, arc.target) for arc in arcs)
    emitting = sorted(
        (arc.source, arc.label, arc.word, arc.target, arc.weight) for arc in arcs if arc.label is not None
    )
    sources, labels, words, targets, weights = (list(column) for column in zip(*emitting, strict=True))
    epsilons = [arc for arc in arcs if arc.label is None]
    closures = [naive_closure(epsilons, state) for state in range(states)]
    flat = [entry for closure in closures for entry in closure]
    final_weights = np.full(states, np.inf, np.float32)
    for state, weight in finals.items():
        final_weights[state] = weight
    every = [list(spelling) for each in spellings.values() for spelling in each]
    return DecodingGraph(
        topology=topology,
        vocabulary_size=vocabulary_size,
        tokenizer_sha256=TOKENIZER_SHA256,
        start_state=0,
        arc_offsets=_offsets(np.bincount(sources, minlength=states)),
        arc_labels=np.array(labels, np.int32),
        arc_weights=np.array(weights, np.float32),
        arc_words=np.array(words, np.int32),
        arc_targets=np.array(targets, np.int32),
        closure_offsets=_offsets([len(closure) for closure in closures]),
        closure_targets=np.array([target for target, _, _ in flat], np.int32),
        closure_weights=np.array([weight for _, _, weight in flat], np.float32),
        closure_words=np.array([word for _, word, _ in flat], np.int32),
        final_weights=final_weights,
        words=("", *spellings),
        spelling_words=_offsets([0, *(len(each) for each in spellings.values())]),
        spelling_offsets=_offsets([len(spelling) for spelling in every]),
        spelling_tokens=np.array([token for spelling in every for token in spelling], np.int32),
    )


def naive_closure(arcs: Sequence[Arc], state: int) -> list[tuple[int, int, float]]:
    """(target, word, least cost) of every path of epsilon arcs from `state`: the state itself, then sorted."""
    least: dict[tuple[int, int], float] = {}
    paths = [(state, 0, 0.0)]
    while paths:
        target, word, weight = paths.pop()
        least[target, word] = min(weight, least.get((target, word), np.inf))
        for arc in arcs:
            if arc.source == target and arc.label is None:
                assert not (word and arc.word), "a path of epsilon arcs with two words"
                paths.append((arc.target, word or arc.word, weight + arc.weight))
    own = (state, 0)
    return [(*own, least.pop(own)), *((*key, least[key]) for key in sorted(least))]


def two_word_graph() -> DecodingGraph:
    """Words "a" = token 0 and "b" = tokens 0 1 over V = 2, any sequence of them; each word costs 0.5, ending 0.25.

    Token 0 does not tell "a" from "b": "a" stands on epsilon arcs, so in closures, "b" on the arc of token 1.
    """
    blank = 2
    start, first, between, done, after_a, after_b = range(6)
    arcs = [
        Arc(start, blank, 0, 0.0, start),
        Arc(start, 0, 0, 0.5, first),
        Arc(first, blank, 0, 0.0, between),
        Arc(first, None, 1, 0.0, after_a),
        Arc(first, 1, 2, 0.0, after_b),
        Arc(between, blank, 0, 0.0, between),
        Arc(between, None, 1, 0.0, done),
        Arc(between, 1, 2, 0.0, after_b),
        Arc(done, None, 0, 0.0, start),
        Arc(after_a, blank, 0, 0.0, start),
        Arc(after_b, blank, 0, 0.0, start),
        Arc(after_b, 0, 0, 0.5, first),
        # A repeat of a held piece leads to its own state, without a weight.
        Arc(first, 0, 0, 0.0, first),
        Arc(after_a, 0, 0, 0.0, after_a),
        Arc(after_b, 1, 0, 0.0, after_b),
    ]
    finals = {start: 0.25, after_a: 0.25, after_b: 0.25}
    return make_graph(arcs, finals, 2, {"a": [[0]], "b": [[0, 1]]})


def word_loop(
    tokenizer: Tokenizer,
    words: Sequence[str] | Mapping[str, str],
    tokenizer_sha256: str = TOKENIZER_SHA256,
    topology: Topology = "normal",
) -> DecodingGraph:
    """Any sequence of equally likely words; a word stands on its first token's arc.

    words: as the tokenizer spells them, or with the texts that spell them.

    A word that begins with the token that the word before it ends with comes after a blank, so that no frames can be
    dealt to words in several ways that cost the same.
    """
    spelled = words if isinstance(words, Mapping) else {word: word for word in words}
    spellings = {word: [tokenizer.encode(text)] for word, text in spelled.items()}
    blank, weight = tokenizer.size, math.log(len(words))
    arcs, finals = [Arc(0, blank, 0, 0.0, 0)], {0: 0.0}
    last_state = 0
    begins: list[Arc] = []
    ends: dict[int, list[int]] = {}  # held states at the ends of words, by their token
    for number, (tokens,) in enumerate(spellings.values(), start=1):
        sources = [0]
        for place, token in enumerate(tokens):
            held, after = last_state + 1, last_state + 2
            last_state = after
            if place == 0:
                begins.append(Arc(0, token, number, weight, held))
            else:
                is_same = tokens[place - 1] == token
                arcs += [Arc(source, token, 0, 0.0, held) for source in (sources[-1:] if is_same else sources)]
            arcs += [Arc(held, token, 0, 0.0, held), Arc(held, blank, 0, 0.0, after), Arc(after, blank, 0, 0.0, after)]
            sources = [held, after]
        ends.setdefault(tokens[-1], []).append(held)
        arcs.append(Arc(after, None, 0, 0.0, 0))
        finals |= dict.fromkeys(sources, 0.0)
    arcs += begins
    for token, states in ends.items():
        others = [arc for arc in begins if arc.label != token]
        if others:
            last_state += 1
            arcs += [arc._replace(source=last_state) for arc in others]
            arcs += [Arc(state, None, 0, 0.0, last_state) for state in states]
    graph = make_graph(arcs, finals, tokenizer.size, spellings, topology)
    return replace(graph, tokenizer_sha256=tokenizer_sha256)


def write_word_loop(
    path: Path, tokenizer_path: Path, words: Sequence[str] | Mapping[str, str], topology: Topology = "normal"
) -> Path:
    """Writes `word_loop` for a model's tokenizer."""
    write_graph(word_loop(Tokenizer(tokenizer_path), words, sha256_of(tokenizer_path), topology), path)
    return path


def write_text_lm(path: Path, tokenizer_path: Path, texts: Iterable[str], order: int = 2) -> Path:
    """Writes an ARPA file of a language model over a model's tokens."""
    tokenizer = Tokenizer(tokenizer_path)
    sentences = [tokenizer.encode(text) for text in texts]
    write_arpa(build_lm(sentences, read_token_names(tokenizer_path), order).arpa, path)
    return path


def _offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
