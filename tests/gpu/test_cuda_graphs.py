"""CUDA graphs on a real device: the labels of eager search, no waiting inside, buckets, two models, after errors."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.penstock_decoders import FrameLooping
from penstock.decoding.beam.hyps import TimedLabels, TokenLists
from penstock.decoding.beam.memory import BeamBuffers, with_choices
from penstock.decoding.beam.memory import fresh_states as fresh_beams
from penstock.decoding.beam.results import BeamReport
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch
from penstock.decoding.greedy.memory import GreedyBuffers, GreedyStates, fresh_states
from penstock.decoding.greedy.search import CapturedSearch, GreedySearch, LabelLooping
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.tensors import tensor_tree
from penstock.decoding.tensors.tensor_tree import leaves
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.graphs.program import CudaGraphError, EagerDriver, Program, While, steps_with_depth
from penstock.graphs.select import missing_for_while_nodes, select_driver
from penstock.kernels.capability import FUSED, TORCH, why_unavailable
from tests.helpers.automata import fusion_states, random_fusion
from tests.helpers.beam import SCORE_ERROR
from tests.helpers.decoding import assert_same_labels, labels_of, random_streams
from tests.helpers.fresh_process import in_fresh_process
from tests.helpers.random_models import random_checkpoint

pytestmark = pytest.mark.gpu

SEARCHES = (LabelLooping, FrameLooping)
DURATIONS = ((), (0, 1, 2), (0, 2, 4), (2, 5))
LENGTHS = (24, 1, 11, 0, 16)
WEIGHTS, PHRASES = [0.4, 0.0, 0.7, 0.0, -0.3], [0, 3, 1, 0, 2]
FRAMES, MAX_BATCH = 6, 6
BEAM = BeamSizes(4, carried_encoder_frames=12, unstable_labels=40)


@pytest.fixture(params=["no_while_loops", "full_graph"])
def driver(request):
    obstacle = missing_for_while_nodes() if request.param == "full_graph" else None
    if obstacle:
        pytest.skip(obstacle)
    return select_driver(request.param, "cuda").driver


@pytest.fixture
def while_driver():
    obstacle = missing_for_while_nodes()
    if obstacle:
        pytest.skip(obstacle)
    return select_driver("full_graph", "cuda").driver


@pytest.fixture
def make(tmp_path):
    def make(durations=(), seed=1, device="cuda", dtype=torch.float32, kernels=TORCH) -> TransducerNetwork:
        checkpoint = random_checkpoint(tmp_path, seed, durations=durations, blank_rate=0.5)
        return open_network(checkpoint, device, dtype, kernels)

    return make


@pytest.fixture(params=[TORCH, FUSED])
def kernels(request) -> str:
    obstacle = why_unavailable("cuda") if request.param == FUSED else None
    if obstacle:
        pytest.skip(obstacle)
    return request.param


class NoSynchronization:
    """Inside, whatever waits for the device is an error."""

    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_) -> None:
        torch.cuda.set_sync_debug_mode("default")


def run_without_waiting(program: Program) -> None:
    """Runs each step twice: kernels are loaded the first time."""
    for _ in range(2):
        with torch.inference_mode(), NoSynchronization():
            for _, step in steps_with_depth(program.body):
                step()


def in_chunks(network: TransducerNetwork, streams: list[torch.Tensor], chunk: int) -> Iterator[tuple]:
    """Projected frames of all streams side by side, rubbish after their ends, and their lengths."""
    for begin in range(0, max(map(len, streams)), chunk):
        parts = [stream[begin : begin + chunk] for stream in streams]
        encoded = torch.full((len(streams), chunk, streams[0].shape[1]), torch.nan)
        for row, part in enumerate(parts):
            encoded[row, : len(part)] = part
        lengths = torch.tensor(list(map(len, parts)), device=network.device)
        yield network.project_encoder(encoded.to(network.device)), lengths


def decode(
    network: TransducerNetwork, search, streams: list[torch.Tensor], has_fusion=False, chunk=FRAMES
) -> list[list]:
    """All streams in chunks."""
    states = start(network, len(streams), has_fusion)
    found: list[list] = [[] for _ in streams]
    for projected_frames, lengths in in_chunks(network, streams, chunk):
        hyps, states = search.decode(projected_frames, lengths, states)
        host = hyps.to_host()
        for row, labels in enumerate(found):
            labels += labels_of(host, row)
    return found


def start(network: TransducerNetwork, batch: int, has_fusion: bool) -> GreedyStates:
    states = fresh_states(network, batch)
    if not has_fusion:
        return states
    return states._replace(fusion=fusion_states(WEIGHTS[:batch], PHRASES[:batch], network.device))


def make_search(kind: type, network: TransducerNetwork, has_fusion: bool) -> GreedySearch:
    fusion = random_fusion(network.blank, network.device) if has_fusion else None
    return kind(network, max_symbols=4, fusion=fusion)


@pytest.mark.parametrize("has_fusion", [False, True])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("kind", SEARCHES)
def test_captured_is_eager(make, driver, kernels, kind, durations, has_fusion):
    network = make(durations, kernels=kernels)
    search = make_search(kind, network, has_fusion)
    captured = CapturedSearch(search, driver, MAX_BATCH, FRAMES)
    streams = random_streams(1, LENGTHS)
    expected = decode(network, search, streams, has_fusion)
    assert sum(map(len, expected)) > 3
    for chunk in (1, FRAMES, 2 * FRAMES + 1):
        assert_same_labels(decode(network, captured, streams, has_fusion, chunk), expected)


@pytest.mark.parametrize("durations", [(), (0, 2, 4)])
def test_captured_is_the_cpu(make, driver, kernels, durations):
    on_cpu, on_gpu = make(durations, device="cpu"), make(durations, kernels=kernels)
    streams = random_streams(2, LENGTHS)
    expected = decode(on_cpu, make_search(LabelLooping, on_cpu, True), streams, True)
    captured = CapturedSearch(make_search(LabelLooping, on_gpu, True), driver, MAX_BATCH, FRAMES)
    assert_same_labels(decode(on_gpu, captured, streams, True), expected)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6, 7])
def test_buckets(make, driver, kernels, batch):
    network = make((0, 1, 2), kernels=kernels)
    search = LabelLooping(network)
    captured = CapturedSearch(search, driver, MAX_BATCH, FRAMES)
    streams = random_streams(3, (11,) * batch)
    for _ in range(2):
        assert_same_labels(decode(network, captured, streams), decode(network, search, streams))


@pytest.mark.parametrize("has_fusion", [False, True])
@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
@pytest.mark.parametrize("kind", SEARCHES)
def test_steps_never_synchronize(make, kernels, kind, durations, has_fusion):
    network = make(durations, kernels=kernels)
    search = make_search(kind, network, has_fusion)
    program = search.program(GreedyBuffers(network, 3, 5, 50).workspace(3))
    run_without_waiting(program)


@pytest.mark.parametrize("frames", [FRAMES, 3 * FRAMES - 1])
@pytest.mark.parametrize("has_fusion", [False, True])
def test_one_graph_never_synchronizes(make, while_driver, kernels, has_fusion, frames):
    network = make((0, 1, 2), kernels=kernels)
    search = make_search(LabelLooping, network, has_fusion)
    captured = CapturedSearch(search, while_driver, MAX_BATCH, FRAMES)
    projected_frames = network.project_encoder(torch.stack(random_streams(4, (frames,) * 5)).cuda())
    lengths, states = torch.full((5,), frames, device="cuda"), start(network, 5, has_fusion)
    expected, _ = search.decode(projected_frames, lengths, states)
    captured.decode(projected_frames, lengths, states)
    with NoSynchronization():
        hyps, _ = captured.decode(projected_frames, lengths, states)
    found, expected = (h.to_host() for h in (hyps, expected))
    assert expected.lengths.sum() > 0
    assert_same_labels(*([labels_of(h, row) for row in range(5)] for h in (found, expected)))


def test_two_models_at_once(make, driver, kernels):
    networks = [make((), 1, kernels=kernels), make((0, 1, 2), 2, kernels=kernels)]
    searches = [LabelLooping(network) for network in networks]
    captured = [CapturedSearch(search, driver, 2, FRAMES) for search in searches]
    streams = random_streams(5, (20, 9))
    for _ in range(3):
        for network, search, one in zip(networks, searches, captured, strict=True):
            assert_same_labels(decode(network, one, streams), decode(network, search, streams))


def test_memory_of_others_is_left_alone(make, driver, kernels):
    """The memory of intermediate tensors of graphs is never reused."""
    network = make(kernels=kernels)
    search = LabelLooping(network)
    captured = CapturedSearch(search, driver, MAX_BATCH, FRAMES)
    torch.cuda.empty_cache()
    others = [torch.full((size,), 7.0, device="cuda") for size in (1, 100, 1000, 100_000, 3_000_000) * 20]
    streams = random_streams(6, LENGTHS)
    assert_same_labels(decode(network, captured, streams), decode(network, search, streams))
    assert all(bool((tensor == 7.0).all()) for tensor in others)


def test_it_works_again_after_an_error(make, driver):
    network = make()
    search = LabelLooping(network)
    captured = CapturedSearch(search, driver, 2, FRAMES)
    streams = random_streams(7, (9, 9))
    wrong = torch.zeros(2, FRAMES, network.frame_width + 1, device="cuda")
    with pytest.raises(RuntimeError):
        captured.decode(wrong, torch.tensor([3, 3], device="cuda"), fresh_states(network, 2))
    assert_same_labels(decode(network, captured, streams), decode(network, search, streams))


def fail_to_capture() -> str:
    """The error of a step that waits for the device inside a loop."""
    flags = torch.zeros(1, dtype=torch.bool, device="cuda")
    is_capturing = torch.cuda.is_current_stream_capturing

    def wait() -> None:
        if is_capturing():
            flags.item()

    with pytest.raises((RuntimeError, CudaGraphError)) as raised:
        select_driver("full_graph", "cuda").driver.prepare(Program(flags, (While(0, (wait,)),)))
    return str(raised.value)


def test_a_capture_that_fails_raises():
    """The driver crashes if such a capture is cleaned up; the process is not used again."""
    if missing := missing_for_while_nodes():
        pytest.skip(missing)
    assert "captur" in in_fresh_process(fail_to_capture)


def test_a_loop_in_a_loop_on_the_device(driver):
    """Counts to 3 four times."""
    flags = torch.zeros(2, dtype=torch.bool, device="cuda")
    inner, outer, total = torch.zeros(3, 1, dtype=torch.int64, device="cuda").unbind()

    def begin() -> None:
        outer.zero_()
        flags.copy_(torch.cat([outer < 0, outer < 4]))

    def open_round() -> None:
        inner.zero_()
        torch.lt(inner, 3, out=flags[:1])

    def count() -> None:
        inner.add_(1)
        total.add_(1)
        torch.lt(inner, 3, out=flags[:1])

    def close_round() -> None:
        outer.add_(1)
        torch.lt(outer, 4, out=flags[1:])

    run = driver.prepare(Program(flags, (begin, While(1, (open_round, While(0, (count,)), close_round)))))
    total.zero_()
    run()
    run()
    assert (total.item(), outer.item()) == (24, 4)


def start_beams(network: TransducerNetwork, batch: int):
    fusion = fusion_states(WEIGHTS[:batch], PHRASES[:batch], network.device)
    beam_sizes = torch.tensor([4, 2, 3, 1, 4][:batch], device=network.device)
    return with_choices(fresh_beams(network, batch, BEAM), beam_sizes, fusion)


def make_beam(network: TransducerNetwork, algorithm: BeamAlgorithm) -> BeamSearch:
    return BeamSearch(network, algorithm, random_fusion(network.blank, network.device), max_symbols=3)


def decode_beams(network: TransducerNetwork, search, streams: list[torch.Tensor], chunk: int) -> list[tuple]:
    """Labels (with times) and score of each stream's best hypothesis."""
    states = start_beams(network, len(streams))
    stable: list[list] = [[] for _ in streams]
    ends = torch.tensor(list(map(len, streams)), device=network.device)
    for number, (projected_frames, lengths) in enumerate(in_chunks(network, streams, chunk), 1):
        update, states = search.decode(projected_frames, lengths, number * chunk >= ends, states)
        for row, labels in enumerate(stable):
            labels += token_list(update.stable, row)
    best = search.n_best(states)
    unstable = TokenLists(TimedLabels(*(field[:, 0] for field in best.unstable.tokens)), best.unstable.lengths[:, 0])
    return [(stable[row] + token_list(unstable, row), float(best.scores[row, 0])) for row in range(len(streams))]


def token_list(lists: TokenLists, row: int) -> list[tuple]:
    count = int(lists.lengths[row])
    return list(zip(*(field[row, :count].tolist() for field in lists.tokens[:3]), strict=True))


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_captured_beam_is_eager(make, driver, algorithm, durations):
    """With fusion, in double precision, so that rounding decides nothing; 5 streams in a bucket of 6."""
    network = make(durations, dtype=torch.float64)
    search = make_beam(network, algorithm)
    captured = CapturedBeamSearch(search, driver, MAX_BATCH, FRAMES, BEAM)
    streams = random_streams(1, LENGTHS)
    for chunk in (1, FRAMES, 2 * FRAMES):
        eager = search if chunk <= FRAMES else CapturedBeamSearch(search, EagerDriver(), MAX_BATCH, FRAMES, BEAM)
        expected = decode_beams(network, eager, streams, chunk)
        assert sum(len(labels) for labels, _ in expected) > 3
        found = decode_beams(network, captured, streams, chunk)
        assert [labels for labels, _ in found] == [labels for labels, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=SCORE_ERROR)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_beam_steps_never_synchronize(make, algorithm, durations):
    network = make(durations)
    search = make_beam(network, algorithm)
    reach = BEAM.carried_encoder_frames + FRAMES
    most = search.algorithm.max_labels(reach), search.algorithm.max_columns(reach)
    program = search.program(BeamBuffers(network, 3, FRAMES, BEAM, *most).workspace(3))
    run_without_waiting(program)


@pytest.mark.parametrize("frames", [FRAMES, 3 * FRAMES - 1])
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_one_beam_graph_never_synchronizes(make, while_driver, algorithm, frames):
    network = make((0, 1, 2))
    captured = CapturedBeamSearch(make_beam(network, algorithm), while_driver, MAX_BATCH, FRAMES, BEAM)
    projected_frames = network.project_encoder(torch.stack(random_streams(4, (frames,) * 5)).cuda())
    lengths, states = torch.full((5,), frames, device="cuda"), start_beams(network, 5)
    is_end = torch.ones(5, dtype=torch.bool, device="cuda")
    captured.decode(projected_frames, lengths, is_end, states)
    with NoSynchronization():
        update, after = captured.decode(projected_frames, lengths, is_end, states)
    assert after.frames_seen.tolist() == [frames] * 5
    assert (update.stable.lengths + update.unstable.lengths).sum() > 0


@pytest.mark.parametrize("frames", [3, 40])
@pytest.mark.parametrize("is_ending", [False, True])
@pytest.mark.parametrize("algorithm", BeamAlgorithm)
def test_a_report_reaches_the_host_whole_and_in_one_copy(make, monkeypatch, algorithm, is_ending, frames):
    """Nothing waits for the device but the copy; there are two where some list is longer than expected."""
    network, waits = make(dtype=torch.float64), []
    network._output.bias[network.blank] -= 1.0  # many labels
    search = make_beam(network, algorithm)
    projected_frames = network.project_encoder(torch.stack(random_streams(9, (frames,) * 3)).cuda())
    is_end = torch.full((3,), is_ending, device="cuda")
    lengths = torch.full((3,), frames, device="cuda")
    update, states = search.decode(projected_frames, lengths, is_end, start_beams(network, 3))
    real = tensor_tree.copy_to_host

    def copy_to_host(block: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_sync_debug_mode("default")
        host = real(block)
        assert host.is_pinned()
        waits.append(len(block))
        torch.cuda.set_sync_debug_mode("error")
        return host

    monkeypatch.setattr(tensor_tree, "copy_to_host", copy_to_host)
    with NoSynchronization():
        report = BeamReport(
            update, states.forced_blanks, states.pruned_hypotheses, search.n_best(states) if is_ending else None
        )
        host = report.to_host()
    assert len(waits) == (1 if host.max_length <= 32 else 2)
    for one, whole in zip(*(leaves(tuple(p for p in r if p is not None)) for r in (host, report)), strict=True):
        assert one.device.type == "cpu" and torch.equal(one, whole.cpu()[..., : one.shape[-1]])
