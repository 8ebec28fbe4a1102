"""Lattices and the Transducer loss against all their paths written out: all points, bands, gradients, durations."""

import math
from collections.abc import Iterator

import pytest
import torch

from recipes.training.lattice import Cells, all_cells, band_cells, log_probability, transducer_loss

FRAMES, LABELS = 7, 4
TIMES = (1, 2, 4, 6)
PATHS = {0: 1, 1: 48, 2: 132, None: 210}
"""Frames of a band on both sides; None: all points."""


def _paths(band: int | None, frames: int = FRAMES, times: tuple[int, ...] = TIMES) -> Iterator[tuple[int, ...]]:
    """The frames of the labels of every path."""

    def extended(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(path) == len(times):
            yield path
            return
        for t in range(path[-1] if path else 0, frames):
            if band is None or abs(t - times[len(path)]) <= band:
                yield from extended((*path, t))

    yield from extended(())


def _by_paths(blank: torch.Tensor, label: torch.Tensor, paths: Iterator[tuple[int, ...]]) -> float:
    """Log of the sum over the paths; blank: [T, U + 1], label: [T, U]."""
    totals = []
    for path in paths:
        total = sum(float(label[t, u]) for u, t in enumerate(path))
        total += sum(float(blank[t, sum(emitted <= t for emitted in path)]) for t in range(len(blank)))
        totals.append(total)
    return float(torch.logsumexp(torch.tensor(totals, dtype=torch.float64), 0))


def _cells(band: int | None) -> Cells:
    counts = torch.tensor([FRAMES]), torch.tensor([LABELS])
    return all_cells(*counts) if band is None else band_cells(*counts, torch.tensor([TIMES]), band, band)


def _dense(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    blank, label = torch.rand(2, 1, FRAMES, LABELS + 1, dtype=torch.float64, generator=random).mul(3).neg()
    return blank, label


def _packed(dense: torch.Tensor, cells: Cells) -> torch.Tensor:
    return dense[cells.rows, cells.frames, cells.places]


@pytest.mark.parametrize("band", PATHS)
def test_equals_all_paths_written_out(band):
    blank, label = _dense()
    cells = _cells(band)
    assert len(list(_paths(band))) == PATHS[band]
    found = log_probability(cells, _packed(blank, cells), _packed(label, cells))
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(_by_paths(blank[0], label[0], _paths(band)), abs=1e-9)


def test_lattices_of_unlike_sizes_in_one_batch():
    random = torch.Generator().manual_seed(1)
    frame_counts, label_counts = torch.tensor([7, 5, 1, 3, 6]), torch.tensor([4, 0, 2, 3, 1])
    blank, label = torch.rand(2, 5, 7, 5, dtype=torch.float64, generator=random).mul(3).neg()
    cells = all_cells(frame_counts, label_counts)
    found = log_probability(cells, _packed(blank, cells), _packed(label, cells))
    for row, (frames, labels) in enumerate(zip(frame_counts.tolist(), label_counts.tolist(), strict=True)):
        paths = _paths(None, frames, (0,) * labels)
        assert found[row].item() == pytest.approx(_by_paths(blank[row, :frames], label[row], paths), abs=1e-9)


def test_equals_the_recursion_over_frames():
    torch.manual_seed(2)
    frame_counts, label_counts = torch.tensor([12, 7, 9]), torch.tensor([5, 3, 0])
    logits, labels = torch.randn(3, 12, 6, 9), torch.randint(0, 8, (3, 5))
    cells = all_cells(frame_counts, label_counts)
    log_probs = torch.log_softmax(_packed(logits, cells), -1)
    at_labels = log_probs.gather(1, cells.labels_of(labels).unsqueeze(1)).squeeze(1)
    found = log_probability(cells, log_probs[:, -1], at_labels)
    wanted = -transducer_loss(logits, labels, frame_counts, label_counts)
    torch.testing.assert_close(found.float(), wanted, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("band", PATHS)
def test_gradients(band):
    blank, label = (_packed(dense, _cells(band)).requires_grad_() for dense in _dense(3))
    torch.autograd.gradcheck(lambda *moves: log_probability(_cells(band), *moves), (blank, label))


@pytest.mark.parametrize("band", PATHS)
def test_each_label_and_each_frame_has_occupancy_one_and_the_rest_none(band):
    blank, label = (dense.requires_grad_() for dense in _dense(4))
    cells = _cells(band)
    log_probability(cells, _packed(blank, cells), _packed(label, cells)).sum().backward()
    torch.testing.assert_close(label.grad[0, :, :LABELS].sum(0), torch.ones(LABELS, dtype=torch.float64))
    torch.testing.assert_close(blank.grad[0].sum(1), torch.ones(FRAMES, dtype=torch.float64))
    on_path = torch.zeros(FRAMES, LABELS + 1, dtype=torch.bool)
    for path in _paths(band):
        for u, t in enumerate(path):
            on_path[t, u] = True
    assert (label.grad[0][~on_path] == 0).all()
    assert (label.grad[0][on_path] > 0).all()


def test_a_band_of_one_of_several_lattices():
    """Padding after shorter lattices does not change them."""
    frame_counts, label_counts = torch.tensor([FRAMES, 5]), torch.tensor([LABELS, 2])
    times = torch.tensor([TIMES, (0, 4, 99, -99)])
    random = torch.Generator().manual_seed(5)
    blank, label = torch.rand(2, 2, FRAMES, LABELS + 1, dtype=torch.float64, generator=random).neg()
    cells = band_cells(frame_counts, label_counts, times, 1, 1)
    found = log_probability(cells, _packed(blank, cells), _packed(label, cells))
    wanted = _by_paths(blank[1, :5], label[1], _paths(1, 5, (0, 4)))
    assert found[1].item() == pytest.approx(wanted, abs=1e-9)


def test_points_without_a_path_are_rejected():
    counts = torch.tensor([FRAMES, FRAMES]), torch.tensor([2, 2])
    cells = band_cells(*counts, torch.tensor([[1, 2], [5, 1]]), 1, 1)
    with pytest.raises(ValueError, match="lattice 1: no path"):
        log_probability(cells, torch.zeros(len(cells.rows)), torch.zeros(len(cells.rows)))


DURATION_LISTS = [(), (0, 1, 2, 3, 4), (0, 2, 4), (1, 0, 3), (1, 2)]
LOSS_FRAMES, PLACES, LOSS_LABELS = 6, 4, 5


def _loss_by_paths(logits: torch.Tensor, labels: list[int], frames: int, durations: tuple[int, ...]) -> float:
    """-log of the sum over all paths that end exactly at `frames` with a blank. logits: [T, U + 1, outputs]."""
    outputs = logits.shape[2] - len(durations)
    emit = torch.log_softmax(logits[..., :outputs], -1)
    jump = torch.log_softmax(logits[..., outputs:], -1) if durations else None

    def moves(t: int, u: int, is_blank: bool):
        if jump is None:
            yield (1 if is_blank else 0), 0.0
            return
        for i, frames_on in enumerate(durations):
            if frames_on > 0 or not is_blank:
                yield frames_on, float(jump[t, u, i])

    def total(t: int, u: int) -> float:
        paths = 0.0
        for on, score in moves(t, u, True):
            step = math.exp(float(emit[t, u, -1]) + score)
            if t + on == frames:
                paths += step if u == len(labels) else 0.0
            elif t + on < frames:
                paths += step * total(t + on, u)
        if u < len(labels):
            for on, score in moves(t, u, False):
                if t + on < frames:
                    paths += math.exp(float(emit[t, u, labels[u]]) + score) * total(t + on, u + 1)
        return paths

    probability = total(0, 0)
    return -math.log(probability) if probability else math.inf


@pytest.mark.parametrize("durations", DURATION_LISTS)
def test_equals_the_sum_over_all_paths(durations):
    torch.manual_seed(3)
    counts, label_counts = torch.tensor([6, 5, 3, 4]), torch.tensor([3, 0, 1, 2])
    logits = torch.randn(4, LOSS_FRAMES, PLACES, LOSS_LABELS + 1 + len(durations))
    labels = torch.randint(0, LOSS_LABELS, (4, PLACES - 1))
    found = transducer_loss(logits, labels, counts, label_counts, durations)
    for row in range(4):
        said = labels[row, : label_counts[row]].tolist()
        wanted = _loss_by_paths(logits[row].double(), said, int(counts[row]), durations)
        if math.isinf(wanted):  # durations that cannot add up to the frames
            assert found[row].item() > 1e20
        else:
            assert found[row].item() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("durations", DURATION_LISTS)
def test_padding_changes_nothing_and_gets_no_gradient(durations):
    torch.manual_seed(4)
    logits = torch.randn(1, LOSS_FRAMES, PLACES, LOSS_LABELS + 1 + len(durations), requires_grad=True)
    labels = torch.tensor([[1, 4, 2]])
    loss = transducer_loss(logits, labels, torch.tensor([4]), torch.tensor([2]), durations)
    alone = transducer_loss(logits[:, :4, :3], labels[:, :2], torch.tensor([4]), torch.tensor([2]), durations)
    assert loss.item() == pytest.approx(alone.item(), abs=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[:, :4, :3].abs().sum() > 0
    assert gradient[:, 4:].abs().max() < 1e-6 and gradient[:, :, 3:].abs().max() < 1e-6
