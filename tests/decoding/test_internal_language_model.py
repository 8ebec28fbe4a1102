"""The weights of a factorized transducer's internal language model in all searches, each stream with its own."""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch
from penstock.decoding.greedy.memory import GreedyStates, GreedyStateStore, fresh_states
from penstock.decoding.greedy.search import CapturedSearch, LabelLooping
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.transducer.networks import FactorizedNetwork, open_network
from penstock.graphs.full_graph import FullGraphDriver
from penstock.model.bundle import Checkpoint
from penstock.model.config import FACTORIZED, IlmPair
from penstock.scoring.fusion import Fusion
from tests.helpers.automata import fusion_states, random_fusion
from tests.helpers.beam import Choices, Found, TableAutomaton, assert_same_beam, search_in_chunks, search_whole, start
from tests.helpers.decoding import assert_same_labels, decode_in_chunks, decode_whole, random_streams
from tests.helpers.fake_capture import FakeBuilder
from tests.helpers.random_models import random_checkpoint
from tests.helpers.reference.greedy import GreedyReference, Label

PAIRS = [IlmPair(0.6, 0.6), IlmPair(1.0, 0.0), IlmPair(0.0, 0.8), IlmPair(1.3, 0.3), IlmPair(2.0, 3.0)]
LENGTHS = (12, 6, 0, 10, 8)
SIZES = BeamSizes(4)
both_searches = pytest.mark.parametrize("algorithm", BeamAlgorithm)


class Model(NamedTuple):
    """A factorized transducer in double precision."""

    checkpoint: Checkpoint
    network: FactorizedNetwork

    def reference(self, pair: IlmPair) -> GreedyReference:
        tensors = {name: tensor.double() for name, tensor in self.checkpoint.tensors().items()}
        return GreedyReference(self.checkpoint.config.transducer, tensors, pair=pair)


def make(directory: Path, pair: IlmPair | None = None) -> Model:
    """Half of the decisions are blank with the checkpoint's weights, `pair`."""
    checkpoint = random_checkpoint(directory, 3, kind=FACTORIZED, blank_rate=0.5, pair=pair)
    return Model(checkpoint, open_network(checkpoint, dtype=torch.float64))


@pytest.fixture
def model(tmp_path) -> Model:
    return make(tmp_path)


def greedy_states(network: FactorizedNetwork, pairs: list[IlmPair]) -> GreedyStates:
    return fresh_states(network, len(pairs))._replace(ilm=network.ilm_weights(pairs))


def greedy(search, streams: list[torch.Tensor], pairs: list[IlmPair], fusion=None) -> list[list[Label]]:
    """The labels of all streams in one batch."""
    states = greedy_states(search.network, pairs)
    states = states if fusion is None else states._replace(fusion=fusion)
    return decode_whole(search.network, search, streams, states)


@both_searches
@pytest.mark.parametrize("has_fusion", [False, True])
def test_beams_of_unlike_weights_in_a_batch_are_each_alone(model, algorithm, has_fusion):
    network, streams = model.network, random_streams(1, LENGTHS)
    weights = [0.5, 0.0, 0.3, 0.7, 0.2] if has_fusion else None
    search = BeamSearch(network, algorithm, Fusion(TableAutomaton(2)) if has_fusion else None)
    together = search_whole(network, search, streams, SIZES, Choices(weights=weights, pairs=PAIRS))
    states = start(network, len(streams), SIZES, Choices(weights=weights, pairs=PAIRS))
    chunked = search_in_chunks(network, search, streams, states, random.Random(3), 4)
    for row, (stream, pair) in enumerate(zip(streams, PAIRS, strict=True)):
        alone_choices = Choices(weights=weights and weights[row : row + 1], pairs=[pair])
        (alone,) = search_whole(network, search, [stream], SIZES, alone_choices)
        assert_same_beam(together[row], alone)
        assert_same_beam(chunked.n_best[row], alone)
    same = search_whole(network, search, streams, SIZES, Choices(weights=weights, pairs=[PAIRS[0]] * len(PAIRS)))
    assert [beam[0].score for beam in same[3:]] != [beam[0].score for beam in together[3:]]


@pytest.mark.parametrize("has_fusion", [False, True])
def test_greedy_streams_of_unlike_weights_in_a_batch_are_each_alone(model, monkeypatch, has_fusion):
    network, streams = model.network, random_streams(1, LENGTHS)
    search = LabelLooping(network, fusion=random_fusion(network.blank) if has_fusion else None)
    weights, phrases = [0.4, 0.0, 0.7, 0.0, -0.3], [0, 3, 1, 0, 2]
    fusion = fusion_states(weights, phrases) if has_fusion else None
    together = greedy(search, streams, PAIRS, fusion)
    for row, (stream, pair) in enumerate(zip(streams, PAIRS, strict=True)):
        own = fusion_states([weights[row]], [phrases[row]]) if has_fusion else None
        assert_same_labels(greedy(search, [stream], [pair], own), [together[row]])
    states = greedy_states(network, PAIRS)
    states = states if fusion is None else states._replace(fusion=fusion)
    monkeypatch.setattr("tests.helpers.decoding.fresh_states", lambda *_: states)
    assert_same_labels(decode_in_chunks(network, search, streams, random.Random(1)), together)
    assert_same_labels(decode_whole(network, search, streams), together)
    assert greedy(search, streams, [PAIRS[0]] * len(PAIRS), fusion) != together


def test_captured_searches_read_weights_that_come_after_the_capture(model):
    network, streams = model.network, random_streams(2, LENGTHS)
    beams = BeamSearch(network, max_symbols=3)
    captured_beams = CapturedBeamSearch(beams, FullGraphDriver(FakeBuilder()), 6, 18, SIZES)
    captured = CapturedSearch(LabelLooping(network), FullGraphDriver(FakeBuilder()), max_batch=6, frames=18)
    for pairs in (PAIRS, PAIRS[::-1]):
        assert_same_labels(
            greedy(_Of(captured, network), streams, pairs), greedy(LabelLooping(network), streams, pairs)
        )
        found, expected = (
            search_whole(network, search, streams, SIZES, Choices(pairs=pairs)) for search in (captured_beams, beams)
        )
        for one, other in zip(found, expected, strict=True):
            assert_same_beam(one, other)


class _Of(NamedTuple):
    """A captured search with the network that it was made of."""

    search: CapturedSearch
    network: FactorizedNetwork

    @property
    def decode(self):
        return self.search.decode


class WithoutExtra(FactorizedNetwork):
    """Scores by equation 4 alone."""

    def ilm_scores(self, projected_predictions, ilm):
        return None


def test_beta_0_is_bit_for_bit_no_additional_term(model):
    network, plain, streams = (
        model.network,
        WithoutExtra(model.checkpoint, "cpu", torch.float64, "torch"),
        random_streams(5, LENGTHS),
    )
    pairs = [IlmPair(alpha, 0.0) for alpha in (1.0, 0.6, 0.0, 1.3, 1.0)]
    assert greedy(LabelLooping(network), streams, pairs) == greedy(LabelLooping(plain), streams, pairs)
    for algorithm in BeamAlgorithm:
        found, expected = (
            search_whole(one, BeamSearch(one, algorithm), streams, SIZES, Choices(pairs=pairs))
            for one in (network, plain)
        )
        assert found == expected


def test_the_checkpoints_weights_are_the_default(tmp_path):
    network, streams = make(tmp_path, IlmPair(0.6, 0.6)).network, random_streams(6, (18, 9))
    chosen = greedy(LabelLooping(network), streams, [IlmPair(0.6, 0.6)] * 2)
    assert decode_whole(network, LabelLooping(network), streams) == chosen
    assert greedy(LabelLooping(network), streams, [IlmPair()] * 2) != chosen
    search = BeamSearch(network)
    beams = search_whole(network, search, streams, SIZES)
    assert beams == search_whole(network, search, streams, SIZES, Choices(pairs=[IlmPair(0.6, 0.6)] * 2))


def test_weights_in_slots(model):
    """A reset sets the weights of its streams only, and none stays behind in a reused slot."""
    network, slots = model.network, torch.tensor([0, 1, 2])
    for store in (GreedyStateStore(network, 3), BeamStateStore(network, 3, SIZES)):
        store.reset(torch.tensor([2, 0]), ilm=network.ilm_weights([PAIRS[0], PAIRS[2]]))
        rows = store.gather(slots)
        ilm = rows.ilm if isinstance(rows, GreedyStates) else rows.context.ilm
        alphas, betas = (field.view(3, -1) for field in ilm)
        for row, pair in enumerate([PAIRS[2], IlmPair(), PAIRS[0]]):
            assert alphas[row].tolist() == pytest.approx([pair.alpha] * alphas.shape[1])
            assert betas[row].tolist() == pytest.approx([pair.beta] * betas.shape[1])
        store.reset(torch.tensor([0]))
        rows = store.gather(slots)
        assert (rows.ilm if isinstance(rows, GreedyStates) else rows.context.ilm).betas[0].unique().tolist() == [0.0]


class Sums(NamedTuple):
    """Scores of a text by a model."""

    equation_4: float
    equation_5: float
    """Summed over all alignments, as `equation_4`."""
    log_p_ilm: float


def sums(reference: GreedyReference, stream: torch.Tensor, labels: list[int]) -> Sums:
    """The log of the sum over all alignments, frame by frame, from the reference's scores of each place."""
    prediction, state = reference.predict(48, reference.start())
    places = []  # after 0, 1, ... labels: scores [T, V + 1] by equation 4 and the term of equation 5, [V]
    for label in [*labels, None]:
        scores = torch.stack([reference.joint(frame.double(), prediction) for frame in stream])
        places.append((scores, reference.ilm_scores(prediction), prediction[-48:]))
        if label is not None:
            prediction, state = reference.predict(label, state)

    def forward(has_term: bool) -> float:
        arrived = torch.full((len(labels) + 1,), -torch.inf, dtype=torch.float64)
        arrived[0] = 0.0
        for frame in range(len(stream)):
            for place, label in enumerate(labels):
                scores, term, _ = places[place]
                step = scores[frame, label] + (term[label] if has_term else 0.0)
                arrived[place + 1] = torch.logaddexp(arrived[place + 1], arrived[place] + step)
            arrived = arrived + torch.stack([scores[frame, -1] for scores, _, _ in places])
        return float(arrived[-1])

    ilm = sum(float(log_probs[label]) for (_, _, log_probs), label in zip(places, labels, strict=False))
    return Sums(forward(False), forward(True), ilm)


def ids(found: Found) -> list[int]:
    return [label.id for label in found.labels]


@both_searches
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_score_is_at_most_its_texts_sum_over_all_alignments(tmp_path, algorithm, pair):
    """Equation 6 is the sum of equation 5. A beam finds a part of it, and all of it in one frame: one alignment."""
    model, streams = make(tmp_path, pair), random_streams(7, (9, 1))
    search = BeamSearch(model.network, algorithm)
    beams = search_whole(model.network, search, streams, BeamSizes(8), Choices(pairs=[pair] * 2))
    reference = model.reference(pair)
    beta = float(torch.tensor(pair.beta))  # as the searches have it
    gaps = []
    for stream, beam in zip(streams, beams, strict=True):
        for found in beam:
            whole = sums(reference, stream, ids(found))
            assert whole.equation_5 == pytest.approx(whole.equation_4 + beta * whole.log_p_ilm, abs=1e-10)
            assert found.score - found.acoustic == pytest.approx(beta * whole.log_p_ilm, abs=1e-9)
            gaps.append(whole.equation_5 - found.score)
    assert min(map(len, beams)) > 2
    assert min(gaps) > -1e-9
    assert gaps[len(beams[0]) :] == pytest.approx([0.0] * len(beams[1]), abs=1e-9)


@both_searches
def test_hypotheses_without_labels(model, algorithm):
    model.network._blank_output.bias += 200.0
    streams = random_streams(9, (7, 3, 0))
    beams = search_whole(model.network, BeamSearch(model.network, algorithm), streams, SIZES, Choices(pairs=PAIRS[:3]))
    assert [beam[0].labels for beam in beams] == [[], [], []]
    assert all(beam[0].score == beam[0].acoustic == pytest.approx(0.0, abs=1e-9) for beam in beams)
    assert greedy(LabelLooping(model.network), streams, PAIRS[:3]) == [[], [], []]
