"""A captured search equals the eager one for any batch, chunk and driver; its steps touch nothing but fixed memory."""

import random

import pytest
import torch

from benchmarks.penstock_decoders import FrameLooping
from penstock.decoding.greedy.memory import GreedyBuffers, GreedyStates, fresh_states
from penstock.decoding.greedy.search import CapturedSearch, LabelLooping
from penstock.decoding.tensors import graph_buckets
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.decoding.transducer.interface import TransducerNetwork, max_labels
from penstock.decoding.transducer.networks import open_network
from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import EagerDriver, Program, steps_with_depth
from penstock.model.config import IlmPair
from tests.helpers.automata import fusion_states, random_fusion
from tests.helpers.decoding import (
    DURATIONS,
    PAIRS,
    assert_same_labels,
    decode_in_chunks,
    decode_whole,
    labels_of,
    random_streams,
)
from tests.helpers.fake_capture import FakeBuilder, FakeCapture, NoSynchronization
from tests.helpers.random_models import head, random_checkpoint

SEARCHES = (LabelLooping, FrameLooping)
DRIVERS = {
    "no_graphs": EagerDriver,
    "no_while_loops": lambda: NoWhileLoopsDriver(FakeCapture()),
    "full_graph": lambda: FullGraphDriver(FakeBuilder()),
}
LENGTHS = (24, 1, 11, 0, 16)
WEIGHTS, PHRASES = [0.4, 0.0, 0.7, 0.0, -0.3], [0, 3, 1, 0, 2]


@pytest.fixture
def make(tmp_path):
    def make(durations=(), seed=1, blank_rate=0.5) -> TransducerNetwork:
        return open_network(random_checkpoint(tmp_path, seed, blank_rate=blank_rate, **head(durations)))

    return make


def start_states(network: TransducerNetwork, batch: int) -> GreedyStates:
    return fresh_states(network, batch)._replace(fusion=fusion_states(WEIGHTS[:batch], PHRASES[:batch]))


@pytest.mark.parametrize(
    ("driver", "seed", "durations"),
    [
        *(("no_while_loops", seed, durations) for seed, durations in ((0, ()), (5, (2, 5)), (0, PAIRS[0]))),
        *(("full_graph", seed, durations) for seed, durations in ((3, (0, 2, 4)), (7, (0, 9)), (1, PAIRS[1]))),
    ],
    ids=str,
)
def test_label_looping_captured_is_eager(make, monkeypatch, driver, seed, durations):
    check_captured_is_eager(make(durations, seed), LabelLooping, driver, monkeypatch)


def check_captured_is_eager(network: TransducerNetwork, kind: type, driver: str, monkeypatch) -> None:
    """With fusion, chunks from 0 to beyond what fits at once, 5 streams in a bucket of 6."""
    monkeypatch.setattr("tests.helpers.decoding.fresh_states", start_states)
    search = kind(network, max_symbols=3, fusion=random_fusion(network.blank))
    captured = CapturedSearch(search, DRIVERS[driver](), max_batch=6, frames=4)
    streams = random_streams(1, LENGTHS)
    expected = decode_whole(network, search, streams)
    assert sum(map(len, expected)) > 3
    assert_same_labels(decode_whole(network, captured, streams), expected)
    for max_frames in (3, 7):
        chance = random.Random(max_frames)
        assert_same_labels(decode_in_chunks(network, captured, streams, chance, max_frames), expected)


@pytest.mark.parametrize("driver", DRIVERS)
def test_padding_to_buckets_changes_nothing(make, driver):
    network = make((0, 1, 2))
    search = LabelLooping(network)
    captured = CapturedSearch(search, DRIVERS[driver](), max_batch=5, frames=9)
    streams = random_streams(2, (9, 5, 7, 9, 8))
    for batch in (5, 1, 3, 2, 4, 5):
        expected = decode_whole(network, search, streams[:batch])
        assert_same_labels(decode_whole(network, captured, streams[:batch]), expected)


@pytest.mark.parametrize("durations", [(), (0, 2, 4), IlmPair(0.6, 0.6)], ids=str)
def test_leaving_streams_out_is_only_for_eager_search_and_changes_nothing(make, monkeypatch, durations):
    streams = random_streams(6, tuple(range(1, 31)))
    weights, phrases = torch.linspace(-0.3, 0.7, 30).tolist(), [number % 4 for number in range(30)]
    monkeypatch.setattr(
        "tests.helpers.decoding.fresh_states",
        lambda network, batch: fresh_states(network, batch)._replace(fusion=fusion_states(weights, phrases)),
    )
    network = make(durations)
    search = LabelLooping(network, max_symbols=3, fusion=random_fusion(network.blank))
    captured = CapturedSearch(search, EagerDriver(), max_batch=30, frames=30)
    assert_same_labels(decode_whole(network, search, streams), decode_whole(network, captured, streams))


def test_a_batch_above_the_largest_bucket_is_decoded_eagerly(make):
    network = make()
    search = LabelLooping(network)
    captured = CapturedSearch(search, EagerDriver(), max_batch=2, frames=9)
    streams = random_streams(2, (9, 5, 7))
    assert decode_whole(network, captured, streams) == decode_whole(network, search, streams)


def test_it_works_again_after_an_error(make):
    network = make()
    search = LabelLooping(network)
    captured = CapturedSearch(search, NoWhileLoopsDriver(FakeCapture()), max_batch=2, frames=9)
    streams = random_streams(2, (9, 9))
    with pytest.raises(RuntimeError):
        captured.decode(torch.zeros(2, 9, network.frame_width + 1), torch.tensor([9, 9]), fresh_states(network, 2))
    assert_same_labels(decode_whole(network, captured, streams), decode_whole(network, search, streams))


class Recording:
    """A driver that records the batch sizes of its programs and runs."""

    name = "recording"

    def __init__(self):
        self.runs: list[int] = []
        self.prepared: list[int] = []

    def prepare(self, program: Program):
        step = program.body[0]
        batch = len(step.args[0].lengths)
        self.prepared.append(batch)
        run = EagerDriver().prepare(program)
        return lambda: (self.runs.append(batch), run())


def test_buckets_are_captured_from_the_largest_down_and_the_smallest_that_fits_runs(make, monkeypatch):
    monkeypatch.setattr(graph_buckets, "BUCKETS", (1, 2, 4, 8))
    network, driver = make(), Recording()
    captured = CapturedSearch(LabelLooping(network), driver, max_batch=6, frames=9)
    assert driver.prepared == [6, 4, 2, 1]
    for batch in (1, 2, 3, 4, 5, 6):
        decode_whole(network, captured, random_streams(2, (9,) * batch))
    assert driver.runs == [1, 2, 4, 4, 6, 6]


def shared(workspace) -> list[torch.Tensor]:
    return [workspace.projected_frames, workspace.lengths, workspace.hyps.labels, *leaves(workspace.states)]


@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("durations", [(), (0, 1, 3), IlmPair(0.6, 0.6)])
def test_steps_never_synchronize_nor_move_a_tensor(make, kind, durations):
    network = make(durations)
    search = kind(network, fusion=random_fusion(network.blank))
    workspace = GreedyBuffers(network, 3, 5, 50).workspace(3)
    program = search.program(workspace)
    tensors = [t for t in vars(workspace).values() if isinstance(t, torch.Tensor)]
    tensors += [*shared(workspace), workspace.hyps.lengths, workspace.hyps.scores]
    before = [tensor.data_ptr() for tensor in tensors]
    versions = dict(vars(workspace))
    with torch.inference_mode(), NoSynchronization():
        for _, step in steps_with_depth(program.body):
            step()
    assert [tensor.data_ptr() for tensor in tensors] == before
    assert all(vars(workspace)[name] is value for name, value in versions.items())


@pytest.mark.parametrize("durations", DURATIONS)
def test_labels_never_exceed_the_bound(make, durations):
    network = make(durations, blank_rate=0.0)
    network._output.bias[network.blank] = -1e4
    for max_symbols in (1, 3):
        search = LabelLooping(network, max_symbols)
        hyps, _ = search.decode(
            network.project_encoder(torch.stack(random_streams(4, (7, 7)))),
            torch.tensor([7, 7]),
            fresh_states(network, 2),
        )
        bound = max_labels(network.config, 7, max_symbols)
        assert hyps.lengths.max() <= bound
        if not durations or durations == (1,):
            assert hyps.lengths.tolist() == [bound] * 2


def test_long_chunks_do_not_lose_labels_in_storage(make):
    """max_symbols labels in every frame, many parts in one call."""
    network = make(blank_rate=0.0)
    network._output.bias[network.blank] = -1e4
    search = LabelLooping(network)
    captured = CapturedSearch(search, EagerDriver(), max_batch=2, frames=3)
    streams = random_streams(5, (31, 12))
    frames = network.project_encoder(torch.nn.utils.rnn.pad_sequence(streams, batch_first=True))
    hyps, _ = captured.decode(frames, torch.tensor([31, 12]), fresh_states(network, 2))
    assert [len(labels_of(hyps, row)) for row in range(2)] == [310, 120]
