"""A captured beam search equals the eager one for any batch, chunk and driver; its steps touch only fixed memory."""

import random
from typing import NamedTuple

import pytest
import torch

from penstock.decoding.beam.hyps import TimedLabels, TokenLists
from penstock.decoding.beam.memory import BeamBuffers, BeamStates, BeamWorkspace
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch, joined
from penstock.decoding.sizes import AesLimits, BeamSizes
from penstock.decoding.tensors import graph_buckets
from penstock.decoding.tensors.tensor_tree import leaves, map_tensors
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import EagerDriver, While, steps_with_depth
from penstock.scoring.fusion import Fusion
from tests.helpers.automata import random_fusion
from tests.helpers.beam import (
    LABEL_SCORE_ERROR,
    SCORE_ERROR,
    Choices,
    assert_same_beam,
    labels_of,
    make,
    search_in_chunks,
    search_whole,
    start,
)
from tests.helpers.decoding import PAIRS, random_streams
from tests.helpers.fake_capture import FakeBuilder, FakeCapture, NoSynchronization
from tests.helpers.reference.greedy import Label

DRIVERS = {
    "no_while_loops": lambda: NoWhileLoopsDriver(FakeCapture()),
    "full_graph": lambda: FullGraphDriver(FakeBuilder()),
}
SIZES = BeamSizes(3, carried_encoder_frames=6, unstable_labels=20)
LENGTHS = (13, 1, 7, 0, 9)
CHOICES = Choices([3, 2, 1, 3, 2], [0.4, 0.0, 0.7, 0.0, -0.3])
both_searches = pytest.mark.parametrize("algorithm", BeamAlgorithm)


class Pair(NamedTuple):
    """One search, eager and captured."""

    network: TransducerNetwork
    eager: BeamSearch
    captured: CapturedBeamSearch


def pair(directory, driver, algorithm=BeamAlgorithm.ALSD, durations=(), sizes=SIZES, max_batch=6, frames=3, seed=1):
    _, network = make(directory, seed, durations)
    fusion = automata(network)
    search = BeamSearch(network, algorithm, fusion, max_symbols=3)
    return Pair(network, search, CapturedBeamSearch(search, driver, max_batch, frames, sizes))


def automata(network: TransducerNetwork) -> Fusion:
    return random_fusion(network.blank)


@pytest.mark.parametrize(
    ("algorithm", "driver", "durations"),
    [
        *((BeamAlgorithm.ALSD, *case) for case in (("no_while_loops", ()), ("full_graph", (2, 5)))),
        *((BeamAlgorithm.AES, *case) for case in (("full_graph", (0, 2, 4)), ("no_while_loops", PAIRS[1]))),
    ],
    ids=str,
)
def test_random_chunks_are_eager(tmp_path, driver, durations, algorithm):
    """With fusion, from chunks without frames to beyond what fits at once; 5 streams in a bucket of 6."""
    network, eager, captured = pair(tmp_path, DRIVERS[driver](), algorithm, durations)
    streams = random_streams(1, LENGTHS)
    for max_frames in (2, 5):
        both = [
            search_in_chunks(
                network, search, streams, start(network, 5, SIZES, CHOICES), random.Random(max_frames), max_frames
            )
            for search in (eager, captured)
        ]
        expected, found = both
        assert sum(len(beam[0].labels) for beam in expected.n_best) > 3
        for one, other in zip(found.n_best, expected.n_best, strict=True):
            assert_same_beam(one, other)
        if max_frames <= 3:
            assert found.stable == expected.stable
            assert places(found.partial) == places(expected.partial)
            assert_same_state(found.states, expected.states)


def places(partial: list[list[list[Label]]]) -> list[list[list[tuple]]]:
    """Labels and times without scores."""
    return [[[tuple(label[:3]) for label in labels] for labels in stream] for stream in partial]


def assert_same_state(found: BeamStates, expected: BeamStates) -> None:
    """Compares the live hypotheses."""
    live = expected.hypotheses.is_live
    assert torch.equal(found.hypotheses.is_live, live)
    for one, other in zip(leaves(found.hypotheses), leaves(expected.hypotheses), strict=True):
        torch.testing.assert_close(one[live], other[live], atol=SCORE_ERROR, rtol=0)
    for one, other in zip(leaves(found.unstable), leaves(expected.unstable), strict=True):
        torch.testing.assert_close(one, other, atol=LABEL_SCORE_ERROR, rtol=0)
    for field in ("frames_seen", "beam_sizes", "forced_blanks", "pruned_hypotheses"):
        assert torch.equal(getattr(found, field), getattr(expected, field))


@pytest.mark.parametrize("driver", DRIVERS)
def test_padding_to_buckets_changes_nothing(tmp_path, monkeypatch, driver):
    """Smaller batches run in the memory that larger ones have used."""
    monkeypatch.setattr(graph_buckets, "BUCKETS", (1, 2, 4))
    network, eager, captured = pair(tmp_path, DRIVERS[driver](), durations=(0, 1, 2), max_batch=5, frames=9)
    streams = random_streams(2, (9, 5, 7, 9, 8))
    for batch in (5, 1, 3, 2, 4, 5):
        expected = search_whole(network, eager, streams[:batch], SIZES)
        for one, other in zip(search_whole(network, captured, streams[:batch], SIZES), expected, strict=True):
            assert_same_beam(one, other)


@both_searches
def test_truncation(tmp_path, algorithm):
    sizes = BeamSizes(4, carried_encoder_frames=1, unstable_labels=2)
    network, eager, captured = pair(tmp_path, FullGraphDriver(FakeBuilder()), algorithm, (0, 1, 2, 3, 4), sizes)
    streams = random_streams(10, (30, 20))
    expected, found = (
        search_in_chunks(network, search, streams, start(network, 2, sizes), random.Random(3), 2)
        for search in (eager, captured)
    )
    assert algorithm is BeamAlgorithm.AES or expected.states.forced_blanks.sum() > 0
    assert expected.states.pruned_hypotheses.sum() > 0
    assert places(found.partial) == places(expected.partial)
    assert_same_state(found.states, expected.states)


def static(algorithm: BeamAlgorithm, network: TransducerNetwork) -> tuple[BeamSearch, BeamWorkspace]:
    search = BeamSearch(network, algorithm, automata(network), max_symbols=3)
    most = search.algorithm.max_labels(11), search.algorithm.max_columns(11)
    return search, BeamBuffers(network, 3, 5, SIZES, *most).workspace(2)


def tensors_of(workspace: BeamWorkspace) -> dict[str, torch.Tensor]:
    named = {}
    for owner in (workspace, workspace.scratch, workspace.scratch.hyps):
        for name, value in vars(owner).items():
            if isinstance(value, (torch.Tensor, tuple)):
                named |= {f"{type(owner).__name__}.{name}.{i}": leaf for i, leaf in enumerate(leaves(value))}
    return named


@both_searches
@pytest.mark.parametrize("durations", [(), (0, 1, 3)])
def test_steps_never_synchronize_nor_move_a_tensor(tmp_path, durations, algorithm):
    _, network = make(tmp_path, 1, durations)
    search, workspace = static(algorithm, network)
    workspace.lengths.fill_(5)
    program = search.program(workspace)
    before = {name: tensor.data_ptr() for name, tensor in tensors_of(workspace).items()}
    assert len(before) > 40
    hyps = dict(vars(workspace.scratch.hyps))
    with torch.inference_mode(), NoSynchronization():
        for _, step in steps_with_depth(program.body):
            step()
    assert {name: tensor.data_ptr() for name, tensor in tensors_of(workspace).items()} == before
    assert all(vars(workspace.scratch.hyps)[name] is value for name, value in hyps.items())


@both_searches
def test_one_while_loop_for_steps_and_one_for_forced_blanks(tmp_path, algorithm):
    _, network = make(tmp_path, 1)
    search, workspace = static(algorithm, network)
    loops = [item for item in search.program(workspace).body if isinstance(item, While)]
    assert [loop.flag for loop in loops] == [0, 1]
    assert not any(isinstance(item, While) for loop in loops for item in loop.body)


@pytest.mark.parametrize(("durations", "labels"), [((), 3 * 7), ((1,), 7), ((0, 1), 3 * 7), ((2, 5), 4)], ids=str)
def test_no_stream_takes_more_columns_than_there_is_room_for(tmp_path, durations, labels):
    """Blanks that cost nearly everything: every frame is filled with labels."""
    _, network = make(tmp_path, 1, durations)
    network._output.bias[network.blank] = -1e4
    search, sizes = BeamSearch(network, max_symbols=3), BeamSizes(4, 0, 50)
    assert search.algorithm.max_labels(7) == labels
    buffers = BeamBuffers(network, 2, 7, sizes, labels, search.algorithm.max_columns(7))
    workspace = buffers.workspace(2)
    run = EagerDriver().prepare(search.program(workspace))
    buffers.load_states(start(network, 2, sizes))
    frames = network.project_encoder(torch.stack(random_streams(4, (7, 7))))
    buffers.load(frames, torch.tensor([7, 7]), torch.tensor([True, True]))
    with torch.inference_mode():
        run()
    assert workspace.scratch.hyps.columns.max() < workspace.scratch.hyps.max_columns
    longest = (workspace.update.stable.lengths.unsqueeze(1) + workspace.states.unstable.lengths).amax(dim=1)
    assert (longest <= labels).all()
    if durations in ((), (1,)):
        assert longest.tolist() == [labels] * 2
    found = [labels_of(workspace.update.stable, row) + labels_of(workspace.update.unstable, row) for row in range(2)]
    update, _ = search.decode(frames, torch.tensor([7, 7]), torch.tensor([True, True]), start(network, 2, sizes))
    assert found == [labels_of(update.stable, row) + labels_of(update.unstable, row) for row in range(2)]


@pytest.mark.parametrize(("expansions", "beam_sizes"), [(1, None), (2, [1, 3]), (3, None)], ids=str)
@pytest.mark.parametrize("durations", [(), (0, 1, 2)], ids=str)
def test_neither_does_aes(tmp_path, durations, expansions, beam_sizes):
    _, network = make(tmp_path, 1, durations)
    network._output.bias[network.blank] = -1e4
    limits = AesLimits(expansions)
    search, sizes = BeamSearch(network, BeamAlgorithm.AES, aes_limits=limits), BeamSizes(4, 0, 50)
    captured = CapturedBeamSearch(search, EagerDriver(), 2, 7, sizes)
    streams, choices = random_streams(4, (7, 7)), Choices(beam_sizes)
    expected = search_whole(network, search, streams, sizes, choices)
    assert durations or len(expected[0][0].labels) == 7 * expansions == search.algorithm.max_labels(7)
    for one, other in zip(search_whole(network, captured, streams, sizes, choices), expected, strict=True):
        assert_same_beam(one, other)


def test_paths_by_doubling_are_those_step_by_step(tmp_path):
    _, network = make(tmp_path, 1)
    search, workspace = static(BeamAlgorithm.ALSD, network)
    workspace.lengths.fill_(5)
    workspace.scratch.projected_frames.normal_(generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        EagerDriver().prepare(search.program(workspace))()
    hyps = workspace.scratch.hyps
    longest = int(hyps.stored_lengths.max())
    assert longest > 2
    expected = hyps.trace_back(longest)
    for bound in (longest, longest + 1, 16, workspace.max_labels):
        found = hyps.trace_back_within(bound)
        cut = map_tensors(lambda t: t[..., :longest], found.tokens)
        assert torch.equal(found.lengths, expected.lengths)
        assert all(map(torch.equal, leaves(cut), leaves(expected.tokens)))


def test_lists_of_parts_are_joined():
    def lists(values: list[list[int]], lengths: list[int]) -> TokenLists:
        whole = torch.tensor(values)
        return TokenLists(TimedLabels(whole, whole, whole, whole.float(), whole.float()), torch.tensor(lengths))

    together = joined([lists([[1, 2, 9], [9, 9, 9]], [2, 0]), lists([[3, 9], [4, 5]], [1, 2])])
    assert [[label.id for label in labels_of(together, row)] for row in range(2)] == [[1, 2, 3], [4, 5]]
