"""The vectorised Transducer loss against a sum over all paths, written out."""

import math

import pytest
import torch

from recipes.training.losses import transducer_loss

DURATION_LISTS = [(), (0, 1, 2, 3, 4), (0, 2, 4), (1, 0, 3), (1, 2)]
FRAMES, PLACES, LABELS = 6, 4, 5


def _by_paths(logits: torch.Tensor, labels: list[int], frames: int, durations: tuple[int, ...]) -> float:
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
    logits = torch.randn(4, FRAMES, PLACES, LABELS + 1 + len(durations))
    labels = torch.randint(0, LABELS, (4, PLACES - 1))
    found = transducer_loss(logits, labels, counts, label_counts, durations)
    for row in range(4):
        said = labels[row, : label_counts[row]].tolist()
        wanted = _by_paths(logits[row].double(), said, int(counts[row]), durations)
        if math.isinf(wanted):  # durations that cannot add up to the frames
            assert found[row].item() > 1e20
        else:
            assert found[row].item() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("durations", DURATION_LISTS)
def test_padding_changes_nothing_and_gets_no_gradient(durations):
    torch.manual_seed(4)
    logits = torch.randn(1, FRAMES, PLACES, LABELS + 1 + len(durations), requires_grad=True)
    labels = torch.tensor([[1, 4, 2]])
    loss = transducer_loss(logits, labels, torch.tensor([4]), torch.tensor([2]), durations)
    alone = transducer_loss(logits[:, :4, :3], labels[:, :2], torch.tensor([4]), torch.tensor([2]), durations)
    assert loss.item() == pytest.approx(alone.item(), abs=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[:, :4, :3].abs().sum() > 0
    assert gradient[:, 4:].abs().max() < 1e-6 and gradient[:, :, 3:].abs().max() < 1e-6
