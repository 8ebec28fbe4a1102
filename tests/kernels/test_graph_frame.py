"""Frames of the graph search by kernels are those of the PyTorch reference, bit for bit, dead places apart."""

from typing import NamedTuple

import pytest
import torch

from penstock.decoding.sizes import WfstSizes
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import FlatTokens, Frame, FrameStep, FusedFrameStep, StreamBoosts
from penstock.decoding.wfst.ragged import Recombination, StaticShapes
from penstock.kernels.graph_frame import FrameMemory
from tests.helpers.phrases import arena_of
from tests.helpers.wfst import random_graph

ROWS, FRAMES, BEAM = 4, 2, 4.0
WIDTH = 6
"""Tokens of a row before the first frame."""


class Case(NamedTuple):
    """Limits of a frame."""

    max_active: int
    cells: int
    beam: float = BEAM


CASES = {
    "roomy": Case(64, 1024),
    "narrowed": Case(4, 1024, 50.0),  # 32 arcs of a row, and 4 tokens
    "contested": Case(40, 4),  # hardly any cell without a contest: duplicates stay
    "near": Case(64, 1024, 0.5),
}


class Inputs(NamedTuple):
    graph: DeviceGraph
    tokens: FlatTokens
    label_costs: torch.Tensor
    lm_weights: torch.Tensor
    is_idle: torch.Tensor
    boosts: StreamBoosts | None


def random_inputs(seed: int, kind: str, device: str) -> Inputs:
    """The first row has all its tokens, the last none; the second takes the second frame alone."""
    generator = torch.Generator().manual_seed(seed)
    graph = DeviceGraph(random_graph(seed, states=24), device)
    assert graph.has_closure_words
    counts = torch.tensor([WIDTH, 4, 3, 0])
    is_live = torch.arange(WIDTH) < counts.unsqueeze(1)
    states = torch.where(is_live, torch.randint(24, (ROWS, WIDTH), generator=generator), graph.dead_state)
    costs = torch.randint(30, (ROWS, WIDTH), generator=generator) / 8
    costs = torch.where(is_live, costs - costs.amin(1, keepdim=True), torch.inf)
    boosts, phrases = None, torch.zeros_like(states)
    if kind != "plain":
        table = torch.cat([torch.zeros(3, 1), 3 * torch.rand(3, 4, generator=generator) - 1], dim=1)
        boosts = StreamBoosts(table.to(device), torch.tensor([2, 0, 1, 1], device=device), None)
    if kind == "phrases":
        arena, start = arena_of({(0, 1): 2.0, (2,): -1.0, (3, 1, 0): 1.5}, [False, True, False, True], device)
        boosts = boosts._replace(phrases=arena)
        phrases[0] = phrases[2] = start
    rows = torch.arange(ROWS).repeat_interleave(WIDTH)
    tokens = FlatTokens(rows, states.flatten(), phrases.flatten(), costs.flatten())
    label_costs = 3 * torch.rand(ROWS, FRAMES, graph.vocabulary_size + 2, generator=generator)
    label_costs[:, :, graph.idle_label] = 0
    is_idle = torch.tensor([[False, False], [True, False], [False, True], [False, False]])
    lm_weights = torch.tensor([1 / 3, 0.7, 0.0, 1.0])
    return Inputs(
        graph,
        FlatTokens(*(field.to(device) for field in tokens)),
        label_costs.to(device),
        lm_weights.to(device),
        is_idle.to(device),
        boosts,
    )


def steps(inputs: Inputs, case: Case, device: str) -> tuple[FrameStep, FusedFrameStep]:
    """The reference and the kernels, at the begin of a chunk."""
    sizes = WfstSizes(case.max_active, 256, 64)
    shapes = StaticShapes(torch.device(device), ROWS * sizes.arcs)
    cells = Recombination(ROWS, case.cells, device)
    reference = FrameStep(inputs.graph, shapes, cells, sizes, case.beam, ROWS)
    memory = FrameMemory(ROWS + 1, case.max_active, sizes.arcs, case.cells, torch.device(device))
    fused = FusedFrameStep(inputs.graph, memory, case.beam, ROWS)
    for step in (reference, fused):
        bases = torch.full((ROWS,), 2.5, dtype=torch.float64, device=device)
        step.begin(inputs.label_costs.view(-1), inputs.lm_weights, bases, inputs.boosts)
    return reference, fused


def assert_same_frame(reference: FrameStep, fused: FusedFrameStep, expected: FlatTokens, found: FlatTokens) -> None:
    """The same live tokens in the same order, from the same tokens, arcs and closure entries."""
    want_from, have_from = reference.backpointers[-1], fused.backpointers[-1]
    is_live = have_from.is_live
    for name, want, have in zip(expected._fields, expected, found, strict=True):
        assert torch.equal(have[is_live], want[want_from.is_live]), name
    for name in ("rows", "sources", "arcs", "closure_entries"):
        assert torch.equal(getattr(have_from, name)[is_live], getattr(want_from, name)[want_from.is_live]), name
    same_arc = [one.emitting_indices[one.is_live].unique(return_inverse=True)[1] for one in (want_from, have_from)]
    assert torch.equal(*same_arc)
    assert torch.isinf(found.costs[~is_live]).all()
    assert torch.equal(reference.bases, fused.bases)
    assert torch.equal(reference.narrowed, fused.narrowed)


@pytest.mark.parametrize("kind", ["plain", "words", "phrases"])
@pytest.mark.parametrize("name", CASES)
def test_frames_are_those_of_the_reference(kernel_device, name, kind):
    """Two frames over the same memory: what one leaves there does not change the next."""
    inputs, lengths = random_inputs(len(name) + len(kind), kind, kernel_device), []
    reference, fused = steps(inputs, CASES[name], kernel_device)
    tokens = inputs.tokens
    for number in range(FRAMES):
        offsets = torch.arange(ROWS, device=kernel_device) * inputs.label_costs[0].numel()
        frame = Frame(offsets + number * inputs.label_costs.shape[2], inputs.is_idle[:, number])
        expected, found = reference(tokens, frame), fused(tokens, frame)
        assert_same_frame(reference, fused, expected, found)
        lengths.append(int(fused.backpointers[-1].is_live.sum()))
        tokens = found
    assert min(lengths) > ROWS
    assert (tokens.states.view(ROWS, -1)[-1] == inputs.graph.dead_state).all(), "a row without tokens stays without"
    assert bool(fused.narrowed.any()) or name != "narrowed"
