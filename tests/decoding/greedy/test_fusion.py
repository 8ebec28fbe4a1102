"""Greedy search with a language model and phrases: blank is decided without them, the label with them, per stream."""

import random

import pytest
import torch

from benchmarks.penstock_decoders import FrameLooping
from penstock.decoding.greedy.memory import GreedyStates, fresh_states
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.scoring.fusion import Fusion
from tests.helpers.automata import RandomAutomaton, fusion_states, random_fusion
from tests.helpers.decoding import PAIRS, assert_same_labels, decode_in_chunks, decode_whole, random_streams
from tests.helpers.random_models import head, random_checkpoint
from tests.helpers.reference.greedy import GreedyReference, Label

SEARCHES = (LabelLooping, FrameLooping)
LENGTHS = (24, 9, 0, 16)
WEIGHTS, PHRASES = [0.4, 0.0, 0.7, -0.3], [0, 3, 1, 2]
DURATIONS = ((), (0, 1, 2), (0, 2, 4), *PAIRS)


class Choosing:
    """A fusion for the reference: one stream's weight and states, plain numbers."""

    def __init__(self, lm: RandomAutomaton, boost: RandomAutomaton, weight: float, phrases: int):
        self._lm, self._boost, self._weight = lm, boost, weight
        self._states = [0, phrases]

    def __call__(self, log_probs: torch.Tensor) -> int:
        lm_state, boost_state = self._states
        fused = log_probs + self._weight * self._lm.scores[lm_state] + self._boost.scores[boost_state]
        label = int(fused.argmax())
        automata = (self._lm, self._boost)
        self._states = [int(a.next_states[s, label]) for a, s in zip(automata, self._states, strict=True)]
        return label


@pytest.fixture
def make(tmp_path):
    def make(durations=(), seed=1, blank_rate=0.5):
        checkpoint = random_checkpoint(tmp_path, seed, blank_rate=blank_rate, **head(durations))
        return checkpoint, open_network(checkpoint)

    return make


def states(network: TransducerNetwork, weights: list[float], phrases: list[int]) -> GreedyStates:
    return fresh_states(network, len(weights))._replace(fusion=fusion_states(weights, phrases))


def decode(search, streams, start: GreedyStates) -> list[list[Label]]:
    return decode_whole(search.network, search, streams, start)


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("search", SEARCHES)
def test_each_stream_as_the_reference_with_its_own_choice(make, search, durations):
    checkpoint, network = make(durations)
    fusion = random_fusion(network.blank)
    streams = random_streams(1, LENGTHS)
    config = checkpoint.config.transducer
    reference = GreedyReference(config, checkpoint.tensors(), pair=config.ilm_greedy)
    expected = [
        reference.decode(stream, Choosing(fusion._lm, fusion._boost, weight, phrases))
        for stream, weight, phrases in zip(streams, WEIGHTS, PHRASES, strict=True)
    ]
    found = decode(search(network, fusion=fusion), streams, states(network, WEIGHTS, PHRASES))
    assert_same_labels(found, expected)
    assert found != decode(search(network), streams, fresh_states(network, 4))


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("search", SEARCHES)
def test_a_stream_without_choice_is_bit_for_bit_as_without_fusion(make, search, durations):
    _, network = make(durations)
    streams = random_streams(2, LENGTHS)
    plain = decode(search(network), streams, fresh_states(network, 4))
    fused = decode(
        search(network, fusion=random_fusion(network.blank)), streams, states(network, [0, 3.0, 0, 0], [0] * 4)
    )
    assert [fused[row] for row in (0, 2, 3)] == [plain[row] for row in (0, 2, 3)]
    assert fused[1] != plain[1]


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("search", SEARCHES)
def test_chunked_is_whole_and_batched_is_alone(make, monkeypatch, search, durations):
    _, network = make(durations)
    search = search(network, fusion=random_fusion(network.blank))
    streams = random_streams(3, LENGTHS)
    together = decode(search, streams, states(network, WEIGHTS, PHRASES))
    for row, stream in enumerate(streams):
        alone = decode(search, [stream], states(network, WEIGHTS[row : row + 1], PHRASES[row : row + 1]))
        assert_same_labels(alone, together[row : row + 1])
    monkeypatch.setattr("tests.helpers.decoding.fresh_states", lambda *_: states(network, WEIGHTS, PHRASES))
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(1)), together)
    assert_same_labels(decode_whole(network, search, streams), together)


def test_blank_stays_blank_whatever_the_bonus(make):
    """The first label's frame is the same; later ones differ because the labels do."""
    _, network = make(blank_rate=0.8)
    streams = random_streams(5, (40,))
    boost = RandomAutomaton(3, network.blank, is_phrase_list=True)
    boost.scores[1:] += 50.0
    (fused,) = decode(LabelLooping(network, fusion=Fusion(None, boost)), streams, states(network, [0.0], [1]))
    (plain,) = decode(LabelLooping(network), streams, fresh_states(network, 1))
    assert plain[0].timestamp > 0
    assert fused[0].timestamp == plain[0].timestamp
    assert fused[0].id != plain[0].id


def test_a_weight_of_zero_ignores_impossible_labels(make):
    _, network = make()
    lm = RandomAutomaton(1, network.blank)
    lm.scores[:] = -torch.inf
    streams = random_streams(6, (20,))
    plain = decode(LabelLooping(network), streams, fresh_states(network, 1))
    assert decode(LabelLooping(network, fusion=Fusion(lm)), streams, states(network, [0.0], [0])) == plain


def test_the_language_model_is_asked_once_a_label(make):
    _, network = make(blank_rate=0.8)
    fusion = random_fusion(network.blank)
    search = LabelLooping(network, max_symbols=1, fusion=fusion)
    (found,) = decode(search, random_streams(7, (60,)), states(network, [0.1], [0]))
    assert 0 < len(found) < 50
    assert fusion._lm.calls == len(found)
