"""The search beside kaldi-decoder over compiled graphs, in words and in cost: of recordings, and of 10,000 words."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.scoring.wfst.graph_file import TOPOLOGIES, DecodingGraph, Topology
from tests.helpers.kaldi import kaldi_search
from tests.helpers.wfst import Searcher

kaldifst = pytest.importorskip("kaldifst")
from penstock.scoring.wfst.building.fst_arrays import to_fst  # noqa: E402
from tests.helpers.graph_paths import random_costs  # noqa: E402
from tests.helpers.word_graphs import (  # noqa: E402
    compile_words,
    recorded_text,
    synthetic_text,
    synthetic_words,
    word_arpa,
)

BEAMS = (4.0, 8.0, 14.0, 17.0)
LM_WEIGHT = np.float32(1 / 3)


class Compiled(NamedTuple):
    graph: DecodingGraph
    scaled: kaldifst.StdVectorFst
    sentences: list[list[str]]


def compiled(lines: list[str], path: Path, topology: Topology, order: int, utterances: int) -> Compiled:
    """The graph of a model of `lines`, and sentences of them, every other one of words on closures if there are any."""
    graph, fst = compile_words(word_arpa(lines, path, order), topology)
    scaled = fst._replace(weights=LM_WEIGHT * fst.weights, final_weights=LM_WEIGHT * fst.final_weights)
    chance = random.Random(5)
    on_closures = [graph.words[word] for word in sorted(set(graph.closure_words.tolist()) - {0})]
    sentences = [chance.choice(lines).split()[:3] for _ in range(utterances)]
    for sentence in sentences[::2] if on_closures else []:
        sentence[:] = chance.sample(on_closures, 2)
    return Compiled(graph, to_fst(scaled), sentences)


def spoken(graph: DecodingGraph, words: list[str], seed: int) -> torch.Tensor:
    """[T, V + 1] log-probabilities: the words' labels among noise, some held, some with a blank after them."""
    chance = random.Random(seed)
    labels = []
    for word in words:
        for token in graph.spellings(graph.words.index(word))[0]:
            labels += [token] * chance.randint(1, 2) + [graph.blank] * chance.randint(1, 2)
    scores = -random_costs(len(labels), graph.vocabulary_size, seed)
    scores[np.arange(len(labels)), labels] += chance.uniform(4, 8)
    return torch.from_numpy(scores).log_softmax(dim=1)


def check_parity(given: Compiled) -> list[list[int]]:
    """Words and costs of all utterances at all beams; returns the words at the widest."""
    graph, fst, sentences = given
    rows = [spoken(graph, words, seed) for seed, words in enumerate(sentences)]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = [len(row) for row in rows]
    for beam in BEAMS:
        searcher = Searcher(graph, WfstSizes(4096), WfstLimits(beam), slots=len(rows))
        found = searcher.search(batch, 14, lengths)
        for row, result in zip(rows, found, strict=True):
            words, cost = kaldi_search(fst, row.numpy(), beam)
            assert result.narrowed == 0
            assert (result.words, result.cost) == (words, pytest.approx(cost, abs=2e-3))
    return [result.words for result in found]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_graph_of_recorded_text(topology, tmp_path):
    check_parity(compiled(recorded_text(), tmp_path / "words.arpa", topology, 3, 65))


@pytest.mark.nightly
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_graph_of_ten_thousand_words_with_words_on_closures(topology, tmp_path):
    """Costs can be equal while words of closures are lost."""
    chance = random.Random(3)
    lines = list(synthetic_text(synthetic_words(10_000, chance), 2000, chance))
    given = compiled(lines, tmp_path / "words.arpa", topology, 2, 13)
    assert len(given.graph.words) > 10_000
    on_closures = set(given.graph.closure_words.tolist()) - {0}
    assert len(on_closures) > 1000
    found = check_parity(given)
    assert sum(bool(on_closures & set(words)) for words in found) >= 4
