"""Language model and boosting in beam search equal the reference's, with each stream's own choices."""

import random

import pytest
import torch

from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.sizes import BeamSizes
from penstock.model.config import IlmPair
from penstock.scoring.fusion import Fusion
from tests.helpers.beam import (
    Choices,
    TableAutomaton,
    assert_same_beam,
    from_reference,
    make,
    reference,
    search_in_chunks,
    search_whole,
    start,
)
from tests.helpers.decoding import PAIRS, random_streams

SIZES = BeamSizes(3)


@pytest.mark.parametrize("durations", [(), (0, 2, 4), IlmPair(0.6, 0.6)], ids=str)
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_the_plain_search(tmp_path, algorithm, durations):
    checkpoint, network = make(tmp_path, 7, durations)
    table, weights = TableAutomaton(1), [0.6, 0.25]
    streams = random_streams(3, (12, 9))
    search = BeamSearch(network, algorithm, Fusion(table))
    found = search_whole(network, search, streams, SIZES, Choices(weights=weights))
    for stream, weight, beam in zip(streams, weights, found, strict=True):
        plain = reference(checkpoint, 3, fusion=table.plain(weight))
        expected = plain.alsd(stream) if algorithm is BeamAlgorithm.ALSD else plain.aes_search(stream)
        assert_same_beam(beam, from_reference(expected, weight * table.final), atol=1e-4)


def test_it_makes_a_difference(tmp_path):
    _, network = make(tmp_path, 7)
    streams, table = random_streams(3, (20, 12)), TableAutomaton(1)
    without = search_whole(network, BeamSearch(network), streams, SIZES)
    found = search_whole(network, BeamSearch(network, fusion=Fusion(table)), streams, SIZES, Choices(weights=[0.6] * 2))
    assert all(one.acoustic > one.score for one in found[0])
    assert found[0][0].labels != without[0][0].labels


@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_weight_0_is_no_language_model(tmp_path, algorithm):
    _, network = make(tmp_path, 4, (0, 1, 2))
    streams = random_streams(4, (15, 8))
    expected = search_whole(network, BeamSearch(network, algorithm), streams, SIZES)
    search = BeamSearch(network, algorithm, Fusion(TableAutomaton(2)))
    found = search_whole(network, search, streams, SIZES, Choices(weights=[0.0, 0.5]))
    assert_same_beam(found[0], expected[0])
    assert found[1][0].score != expected[1][0].score


class Boost(TableAutomaton):
    """Adds the same to every label's score; nothing at the end."""

    def __init__(self, boost: torch.Tensor):
        super().__init__(0, states=1)
        self.scores, self.next_states = boost[None], torch.zeros(1, len(boost), dtype=torch.int64)
        self.final = torch.zeros(1)


@pytest.mark.parametrize("durations", [(), IlmPair(0.6, 0.6)], ids=str)
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_boosting_adds_to_labels_beside_the_language_model(tmp_path, algorithm, durations):
    checkpoint, network = make(tmp_path, 5, durations)
    (stream,) = random_streams(5, (12,))
    boost = torch.zeros(48)
    boost[[3, 17]] = 2.0
    table = TableAutomaton(3)
    search = BeamSearch(network, algorithm, Fusion(table, Boost(boost)))
    (found,) = search_whole(network, search, [stream], SIZES, Choices(weights=[0.3]))
    plain = reference(checkpoint, 3, fusion=table.plain(0.3, boost=boost))
    expected = plain.alsd(stream) if algorithm is BeamAlgorithm.ALSD else plain.aes_search(stream)
    assert_same_beam(found, from_reference(expected, 0.3 * table.final), atol=1e-4)


@pytest.mark.parametrize("durations", [(0, 1, 3), *PAIRS], ids=str)
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_random_chunks_are_the_whole(tmp_path, algorithm, durations):
    _, network = make(tmp_path, 6, durations)
    streams, choices = random_streams(6, (25, 11, 18)), Choices([4, 2, 3], [0.5, 0.0, 0.9])
    sizes = BeamSizes(4)
    search = BeamSearch(network, algorithm, Fusion(TableAutomaton(4)))
    whole = search_whole(network, search, streams, sizes, choices)
    states = start(network, 3, sizes, choices)
    chunked = search_in_chunks(network, search, streams, states, random.Random(1), 3)
    for found, expected in zip(chunked.n_best, whole, strict=True):
        assert_same_beam(found, expected)
