"""A captured beam search equals the eager one for any batch, chunk and driver; its steps touch only fixed memory."""

import random
from typing import NamedTuple

import pytest
import torch

from penstock.decoding.beam_hyps import TokenRows
from penstock.decoding.beam_results import TokenLists
from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import AesLimits, BeamSizes
from penstock.decoding.beam_state import BeamRows
from penstock.decoding.beam_workspace import BeamBuffers, BeamWorkspace
from penstock.decoding.captured_beam_search import CapturedBeamSearch, beam_with_driver, joined
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import leaves, map_rows
from penstock.fusion.fusion import Fusion
from penstock.graphs.driver import EagerDriver
from penstock.graphs.program import While, steps_with_depth
from penstock.graphs.staged_driver import StagedDriver
from penstock.graphs.while_driver import WhileDriver
from tests.automata import random_fusion
from tests.beam import Choices, assert_same_beam, labels_of, make, search_in_chunks, search_whole, start
from tests.decoding import random_streams
from tests.fake_capture import FakeBuilder, FakeCapture, NoSynchronisation
from tests.reference.greedy import Label

DRIVERS = {"staged": lambda: StagedDriver(FakeCapture()), "while": lambda: WhileDriver(FakeBuilder())}
SIZES = BeamSizes(3, carried_encoder_frames=6, tail_labels=20)
LENGTHS = (13, 1, 7, 0, 9)
CHOICES = Choices([3, 2, 1, 3, 2], [0.4, 0.0, 0.7, 0.0, -0.3])
both_searches = pytest.mark.parametrize("algorithm", BeamAlgorithm)


class Pair(NamedTuple):
    """The same search both ways."""

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


@both_searches
@pytest.mark.parametrize("durations", [(), (0, 2, 4), (2, 5)], ids=str)
@pytest.mark.parametrize("driver", DRIVERS)
def test_random_chunks_are_eager(tmp_path, driver, durations, algorithm):
    """With fusion, from chunks without frames to beyond what fits at once; 5 streams in a bucket of 6."""
    network, eager, captured = pair(tmp_path, DRIVERS[driver](), algorithm, durations)
    streams = random_streams(1, LENGTHS)
    for most_frames in (2, 5):
        both = [
            search_in_chunks(
                network, search, streams, start(network, 5, SIZES, CHOICES), random.Random(most_frames), most_frames
            )
            for search in (eager, captured)
        ]
        expected, found = both
        assert sum(len(beam[0].labels) for beam in expected.n_best) > 3
        for one, other in zip(found.n_best, expected.n_best, strict=True):
            assert_same_beam(one, other)
        if most_frames <= 3:
            assert found.stable == expected.stable
            assert places(found.partial) == places(expected.partial)
            assert_same_state(found.rows, expected.rows)


def places(partial: list[list[list[Label]]]) -> list[list[list[tuple]]]:
    """Labels and times without scores."""
    return [[[tuple(label[:3]) for label in labels] for labels in stream] for stream in partial]


def assert_same_state(found: BeamRows, expected: BeamRows) -> None:
    """Of the hypotheses that there are."""
    live = expected.hypotheses.is_live
    assert torch.equal(found.hypotheses.is_live, live)
    for one, other in zip(leaves(found.hypotheses), leaves(expected.hypotheses), strict=True):
        torch.testing.assert_close(one[live], other[live], atol=1e-9, rtol=0)
    for one, other in zip(leaves(found.tail), leaves(expected.tail), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    for field in ("frames_seen", "beam_sizes", "forced_on", "dropped"):
        assert torch.equal(getattr(found, field), getattr(expected, field))


@pytest.mark.parametrize("driver", DRIVERS)
def test_padding_to_buckets_changes_nothing(tmp_path, driver):
    """Smaller batches run in what larger ones have left behind."""
    network, eager, captured = pair(tmp_path, DRIVERS[driver](), durations=(0, 1, 2), max_batch=5, frames=9)
    streams = random_streams(2, (9, 5, 7, 9, 8))
    for batch in (5, 1, 3, 2, 4, 5):
        expected = search_whole(network, eager, streams[:batch], SIZES)
        for one, other in zip(search_whole(network, captured, streams[:batch], SIZES), expected, strict=True):
            assert_same_beam(one, other)


@both_searches
def test_hypotheses_are_forced_on_and_tails_cut(tmp_path, algorithm):
    sizes = BeamSizes(4, carried_encoder_frames=1, tail_labels=2)
    network, eager, captured = pair(tmp_path, WhileDriver(FakeBuilder()), algorithm, (0, 1, 2, 3, 4), sizes)
    streams = random_streams(10, (30, 20))
    expected, found = (
        search_in_chunks(network, search, streams, start(network, 2, sizes), random.Random(3), 2)
        for search in (eager, captured)
    )
    assert algorithm is BeamAlgorithm.AES or expected.rows.forced_on.sum() > 0
    assert expected.rows.dropped.sum() > 0
    assert places(found.partial) == places(expected.partial)
    assert_same_state(found.rows, expected.rows)


def test_long_chunks_are_cut_into_pieces(tmp_path):
    """Nothing is forced on or dropped, so pieces are the whole."""
    sizes = BeamSizes(3)
    network, eager, captured = pair(tmp_path, EagerDriver(), sizes=sizes, max_batch=2)
    streams = random_streams(5, (31, 12))
    expected = search_whole(network, eager, streams, sizes)
    for one, other in zip(search_whole(network, captured, streams, sizes), expected, strict=True):
        assert_same_beam(one, other)
    assert len(expected[0][0].labels) > 5


def test_a_batch_above_the_largest_bucket_is_decoded_all_the_same(tmp_path):
    network, eager, captured = pair(tmp_path, EagerDriver(), max_batch=2)
    streams = random_streams(2, (9, 5, 7))
    assert search_whole(network, captured, streams, SIZES) == search_whole(network, eager, streams, SIZES)


def test_the_given_state_is_not_modified(tmp_path):
    network, _, captured = pair(tmp_path, EagerDriver(), max_batch=2)
    rows = start(network, 2, SIZES)
    before = map_rows(torch.clone, rows)
    frames = network.project_encoder(torch.stack(random_streams(2, (3, 3))))
    captured.decode(frames, torch.tensor([3, 2]), torch.tensor([True, False]), rows)
    assert all(map(torch.equal, leaves(rows), leaves(before)))


def test_it_works_again_after_an_error(tmp_path):
    network, eager, captured = pair(tmp_path, StagedDriver(FakeCapture()), max_batch=2)
    wrong = torch.zeros(2, 3, network.joint_hidden + 1)
    with pytest.raises(RuntimeError):
        captured.decode(wrong, torch.tensor([3, 3]), torch.tensor([True, True]), start(network, 2, SIZES))
    streams = random_streams(2, (3, 3))
    expected = search_whole(network, eager, streams, SIZES)
    for one, other in zip(search_whole(network, captured, streams, SIZES), expected, strict=True):
        assert_same_beam(one, other)


def static(algorithm: BeamAlgorithm, network: TransducerNetwork) -> tuple[BeamSearch, BeamWorkspace]:
    search = BeamSearch(network, algorithm, automata(network), max_symbols=3)
    most = search.search.most_labels(11), search.search.most_columns(11)
    return search, BeamBuffers(network, 3, 5, SIZES, *most).workspace(2)


def tensors_of(place: BeamWorkspace) -> dict[str, torch.Tensor]:
    named = {}
    for owner in (place, place.work, place.work.hyps):
        for name, value in vars(owner).items():
            if isinstance(value, (torch.Tensor, tuple)):
                named |= {f"{type(owner).__name__}.{name}.{i}": leaf for i, leaf in enumerate(leaves(value))}
    return named


@both_searches
@pytest.mark.parametrize("durations", [(), (0, 1, 3)])
def test_steps_neither_wait_for_the_host_nor_move_a_tensor(tmp_path, durations, algorithm):
    _, network = make(tmp_path, 1, durations)
    search, place = static(algorithm, network)
    place.lengths.fill_(5)
    program = search.program(place)
    before = {name: tensor.data_ptr() for name, tensor in tensors_of(place).items()}
    assert len(before) > 40
    hyps = dict(vars(place.work.hyps))
    with torch.inference_mode(), NoSynchronisation():
        for _, step in steps_with_depth(program.body):
            step()
    assert {name: tensor.data_ptr() for name, tensor in tensors_of(place).items()} == before
    assert all(vars(place.work.hyps)[name] is value for name, value in hyps.items())


@both_searches
def test_one_while_loop_for_the_steps_and_one_for_stragglers(tmp_path, algorithm):
    _, network = make(tmp_path, 1)
    search, place = static(algorithm, network)
    loops = [item for item in search.program(place).body if isinstance(item, While)]
    assert [loop.flag for loop in loops] == [0, 1]
    assert not any(isinstance(item, While) for loop in loops for item in loop.body)


@pytest.mark.parametrize(("durations", "labels"), [((), 3 * 7), ((1,), 7), ((0, 1), 3 * 7), ((2, 5), 4)], ids=str)
def test_no_stream_takes_more_columns_than_there_is_room_for(tmp_path, durations, labels):
    """Blanks that cost nearly everything: every frame is filled with labels."""
    _, network = make(tmp_path, 1, durations)
    network._output_bias[network.blank] = -1e4
    search, sizes = BeamSearch(network, max_symbols=3), BeamSizes(4, 0, 50)
    assert search.search.most_labels(7) == labels
    buffers = BeamBuffers(network, 2, 7, sizes, labels, search.search.most_columns(7))
    place = buffers.workspace(2)
    run = EagerDriver().prepare(search.program(place))
    buffers.load_rows(start(network, 2, sizes))
    frames = network.project_encoder(torch.stack(random_streams(4, (7, 7))))
    buffers.load(frames, torch.tensor([7, 7]), torch.tensor([True, True]))
    with torch.inference_mode():
        run()
    assert place.work.hyps.columns.max() < place.work.hyps.max_columns
    longest = (place.update.stable.lengths.unsqueeze(1) + place.rows.tail.lengths).amax(dim=1)
    assert (longest <= labels).all()
    if durations in ((), (1,)):
        assert longest.tolist() == [labels] * 2
    found = [labels_of(place.update.stable, row) + labels_of(place.update.tail, row) for row in range(2)]
    update, _ = search.decode(frames, torch.tensor([7, 7]), torch.tensor([True, True]), start(network, 2, sizes))
    assert found == [labels_of(update.stable, row) + labels_of(update.tail, row) for row in range(2)]


@pytest.mark.parametrize("beam_sizes", [None, [1, 3]], ids=str)
@pytest.mark.parametrize("expansions", [1, 2, 3])
@pytest.mark.parametrize("durations", [(), (0, 1, 2)], ids=str)
def test_neither_does_aes(tmp_path, durations, expansions, beam_sizes):
    _, network = make(tmp_path, 1, durations)
    network._output_bias[network.blank] = -1e4
    limits = AesLimits(expansions)
    search, sizes = BeamSearch(network, BeamAlgorithm.AES, aes_limits=limits), BeamSizes(4, 0, 50)
    captured = CapturedBeamSearch(search, EagerDriver(), 2, 7, sizes)
    streams, choices = random_streams(4, (7, 7)), Choices(beam_sizes)
    expected = search_whole(network, search, streams, sizes, choices)
    assert durations or len(expected[0][0].labels) == 7 * expansions == search.search.most_labels(7)
    for one, other in zip(search_whole(network, captured, streams, sizes, choices), expected, strict=True):
        assert_same_beam(one, other)


def test_paths_by_doubling_are_those_step_by_step(tmp_path):
    _, network = make(tmp_path, 1)
    search, place = static(BeamAlgorithm.ALSD, network)
    place.lengths.fill_(5)
    place.work.frame_rows.normal_(generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        EagerDriver().prepare(search.program(place))()
    hyps = place.work.hyps
    longest = int(hyps.stored_lengths.max())
    assert longest > 2
    expected = hyps.trace_back(longest)
    for bound in (longest, longest + 1, 16, place.most_labels):
        found = hyps.trace_back_within(bound)
        cut = map_rows(lambda t: t[..., :longest], found.tokens)
        assert torch.equal(found.lengths, expected.lengths)
        assert all(map(torch.equal, leaves(cut), leaves(expected.tokens)))


def test_the_eager_driver_needs_no_preparation(tmp_path):
    _, network = make(tmp_path, 1)
    search = BeamSearch(network)
    assert beam_with_driver(search, EagerDriver(), 4, 4) is search
    small = BeamSizes(1, 0, 1)
    assert isinstance(beam_with_driver(search, StagedDriver(FakeCapture()), 1, 1, small), CapturedBeamSearch)


def test_sizes_that_cannot_be(tmp_path):
    _, network = make(tmp_path, 1)
    with pytest.raises(ValueError, match="not supported"):
        CapturedBeamSearch(BeamSearch(network), EagerDriver(), 1, 1, BeamSizes(33))


def test_lists_of_pieces_are_joined():
    def lists(values: list[list[int]], lengths: list[int]) -> TokenLists:
        whole = torch.tensor(values)
        return TokenLists(TokenRows(whole, whole, whole, whole.float(), whole.float()), torch.tensor(lengths))

    together = joined([lists([[1, 2, 9], [9, 9, 9]], [2, 0]), lists([[3, 9], [4, 5]], [1, 2])])
    assert [[label.id for label in labels_of(together, row)] for row in range(2)] == [[1, 2, 3], [4, 5]]
