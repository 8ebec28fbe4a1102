"""A captured search equals the eager one for any batch, chunk and driver; its steps touch nothing but fixed memory."""

import random

import pytest
import torch

from penstock.decoding.buckets import bucket_sizes
from penstock.decoding.captured_search import CapturedSearch, with_driver
from penstock.decoding.frame_looping import FrameLooping
from penstock.decoding.greedy_search import most_labels
from penstock.decoding.greedy_state import GreedyRows, fresh_rows
from penstock.decoding.greedy_workspace import StaticBuffers
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import leaves, map_rows
from penstock.graphs.driver import EagerDriver
from penstock.graphs.program import Program, steps_with_depth
from penstock.graphs.staged_driver import StagedDriver
from penstock.graphs.while_driver import WhileDriver
from tests.automata import fusion_rows, random_fusion
from tests.decoding import DURATIONS, assert_same_labels, decode_in_chunks, decode_whole, labels_of, random_streams
from tests.fake_capture import FakeBuilder, FakeCapture, NoSynchronisation
from tests.random_models import random_checkpoint

SEARCHES = (LabelLooping, FrameLooping)
DRIVERS = {
    "eager": EagerDriver,
    "staged": lambda: StagedDriver(FakeCapture()),
    "while": lambda: WhileDriver(FakeBuilder()),
}
LENGTHS = (24, 1, 11, 0, 16)
WEIGHTS, PHRASES = [0.4, 0.0, 0.7, 0.0, -0.3], [0, 3, 1, 0, 2]


@pytest.fixture
def make(tmp_path):
    def make(durations=(), seed=1, blank_rate=0.5) -> TransducerNetwork:
        return TransducerNetwork(random_checkpoint(tmp_path, seed, durations=durations, blank_rate=blank_rate))

    return make


def start_rows(network: TransducerNetwork, batch: int) -> GreedyRows:
    return fresh_rows(network, batch)._replace(fusion=fusion_rows(WEIGHTS[:batch], PHRASES[:batch]))


@pytest.mark.parametrize(("seed", "durations"), [(0, ()), (3, (0, 2, 4)), (5, (2, 5)), (7, (0, 9))], ids=str)
@pytest.mark.parametrize("driver", ["staged", "while"])
def test_label_looping_captured_is_eager(make, monkeypatch, driver, seed, durations):
    check_captured_is_eager(make(durations, seed), LabelLooping, driver, monkeypatch)


@pytest.mark.parametrize("durations", [(), (0, 2, 4)])
@pytest.mark.parametrize("driver", ["staged", "while"])
def test_frame_looping_captured_is_eager(make, monkeypatch, driver, durations):
    check_captured_is_eager(make(durations), FrameLooping, driver, monkeypatch)


def check_captured_is_eager(network: TransducerNetwork, kind: type, driver: str, monkeypatch) -> None:
    """With fusion, chunks from 0 to beyond what fits at once, 5 streams in a bucket of 6."""
    monkeypatch.setattr("tests.decoding.fresh_rows", start_rows)
    search = kind(network, max_symbols=3, fusion=random_fusion(network.blank))
    captured = CapturedSearch(search, DRIVERS[driver](), max_batch=6, frames=4)
    streams = random_streams(1, LENGTHS)
    expected = decode_whole(network, search, streams)
    assert sum(map(len, expected)) > 3
    assert_same_labels(decode_whole(network, captured, streams), expected)
    for most_frames in (3, 7):
        chance = random.Random(most_frames)
        assert_same_labels(decode_in_chunks(network, captured, streams, chance, most_frames), expected)


@pytest.mark.parametrize("driver", DRIVERS)
def test_padding_to_buckets_changes_nothing(make, driver):
    network = make((0, 1, 2))
    search = LabelLooping(network)
    captured = CapturedSearch(search, DRIVERS[driver](), max_batch=5, frames=9)
    streams = random_streams(2, (9, 5, 7, 9, 8))
    for batch in (5, 1, 3, 2, 4, 5):
        expected = decode_whole(network, search, streams[:batch])
        assert_same_labels(decode_whole(network, captured, streams[:batch]), expected)


def test_a_batch_above_the_largest_bucket_is_decoded_all_the_same(make):
    network = make()
    search = LabelLooping(network)
    captured = CapturedSearch(search, EagerDriver(), max_batch=2, frames=9)
    streams = random_streams(2, (9, 5, 7))
    assert decode_whole(network, captured, streams) == decode_whole(network, search, streams)


def test_the_given_state_is_not_modified(make):
    network = make()
    captured = CapturedSearch(LabelLooping(network), EagerDriver(), max_batch=2, frames=9)
    rows = fresh_rows(network, 2)
    before = map_rows(torch.clone, rows)
    captured.decode(network.project_encoder(torch.stack(random_streams(2, (9, 9)))), torch.tensor([9, 9]), rows)
    assert all(map(torch.equal, leaves(rows), leaves(before)))


def test_it_works_again_after_an_error(make):
    network = make()
    search = LabelLooping(network)
    captured = CapturedSearch(search, StagedDriver(FakeCapture()), max_batch=2, frames=9)
    streams = random_streams(2, (9, 9))
    with pytest.raises(RuntimeError):
        captured.decode(torch.zeros(2, 9, network.frame_width + 1), torch.tensor([9, 9]), fresh_rows(network, 2))
    assert_same_labels(decode_whole(network, captured, streams), decode_whole(network, search, streams))


def test_two_models_at_once(make):
    networks = [make((), 1), make((0, 1, 2), 2)]
    captured = [CapturedSearch(LabelLooping(n), WhileDriver(FakeBuilder()), max_batch=2, frames=4) for n in networks]
    streams = random_streams(3, (13, 8))
    for _ in range(2):
        for network, one in zip(networks, captured, strict=True):
            expected = decode_whole(network, LabelLooping(network), streams)
            assert_same_labels(decode_whole(network, one, streams), expected)


def test_bucket_sizes():
    assert [bucket_sizes(n) for n in (1, 2, 3, 8, 9)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 9]]


class Recording:
    """A driver that says which programs it was given."""

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


def test_buckets_are_captured_from_the_largest_down_and_the_smallest_that_fits_runs(make):
    network, driver = make(), Recording()
    captured = CapturedSearch(LabelLooping(network), driver, max_batch=6, frames=9)
    assert driver.prepared == [6, 4, 2, 1]
    for batch in (1, 2, 3, 4, 5, 6):
        decode_whole(network, captured, random_streams(2, (9,) * batch))
    assert driver.runs == [1, 2, 4, 4, 6, 6]


def test_buckets_share_their_memory(make):
    network = make()
    buffers = StaticBuffers(network, 4, 5, 50)
    small, large = buffers.workspace(1), buffers.workspace(4)
    for one, other in zip(shared(small), shared(large), strict=True):
        assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def shared(workspace) -> list[torch.Tensor]:
    return [workspace.frame_rows, workspace.lengths, workspace.hyps.labels, *leaves(workspace.rows)]


@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize("durations", [(), (0, 1, 3)])
def test_steps_neither_wait_for_the_host_nor_move_a_tensor(make, kind, durations):
    network = make(durations)
    search = kind(network, fusion=random_fusion(network.blank))
    workspace = StaticBuffers(network, 3, 5, 50).workspace(3)
    program = search.program(workspace)
    tensors = [t for t in vars(workspace).values() if isinstance(t, torch.Tensor)]
    tensors += [*shared(workspace), workspace.hyps.lengths, workspace.hyps.scores]
    before = [tensor.data_ptr() for tensor in tensors]
    versions = dict(vars(workspace))
    with torch.inference_mode(), NoSynchronisation():
        for _, step in steps_with_depth(program.body):
            step()
    assert [tensor.data_ptr() for tensor in tensors] == before
    assert all(vars(workspace)[name] is value for name, value in versions.items())


@pytest.mark.parametrize("durations", DURATIONS)
def test_no_row_finds_more_labels_than_there_is_room_for(make, durations):
    network = make(durations, blank_rate=0.0)
    network._output_bias[network.blank] = -1e4
    for max_symbols in (1, 3):
        search = LabelLooping(network, max_symbols)
        hyps, _ = search.decode(
            network.project_encoder(torch.stack(random_streams(4, (7, 7)))),
            torch.tensor([7, 7]),
            fresh_rows(network, 2),
        )
        bound = most_labels(network.config, 7, max_symbols)
        assert hyps.lengths.max() <= bound
        if not durations or durations == (1,):
            assert hyps.lengths.tolist() == [bound] * 2


def test_long_chunks_do_not_lose_labels_in_storage(make):
    """Every frame full of labels, many pieces in one call."""
    network = make(blank_rate=0.0)
    network._output_bias[network.blank] = -1e4
    search = LabelLooping(network)
    captured = CapturedSearch(search, EagerDriver(), max_batch=2, frames=3)
    streams = random_streams(5, (31, 12))
    frames = network.project_encoder(torch.nn.utils.rnn.pad_sequence(streams, batch_first=True))
    hyps, _ = captured.decode(frames, torch.tensor([31, 12]), fresh_rows(network, 2))
    assert [len(labels_of(hyps, row)) for row in range(2)] == [310, 120]


def test_the_eager_driver_needs_no_preparation(make):
    search = LabelLooping(make())
    assert with_driver(search, EagerDriver(), 4, 4) is search
    assert isinstance(with_driver(search, StagedDriver(FakeCapture()), 1, 4), CapturedSearch)
