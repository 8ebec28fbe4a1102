"""The loss that knows labels but not their places."""

import pytest
import torch

from penstock.training.label_bag_loss import label_bag_loss

BATCH, FRAMES, VOCABULARY = 3, 9, 5
COUNTS = torch.tensor([9, 6, 4])
LABELS = torch.tensor([[0, 3, 3], [4, 1, 0], [0, 0, 0]])
LABEL_COUNTS = torch.tensor([3, 2, 0])


def random_logits(seed: int = 1) -> torch.Tensor:
    return torch.randn(FRAMES, BATCH, VOCABULARY + 1, generator=torch.Generator().manual_seed(seed))


def loss(log_probs: torch.Tensor, labels: torch.Tensor = LABELS) -> float:
    return float(label_bag_loss(log_probs, COUNTS, labels, LABEL_COUNTS))


def test_it_is_the_cross_entropy_of_the_frames_shares():
    log_probs = random_logits().log_softmax(2)
    wanted = 0.0
    for row in range(2):  # the third has no labels
        mass = log_probs[: COUNTS[row], row, :VOCABULARY].exp().sum(0)
        shares = mass / mass.sum()
        given = LABELS[row, : LABEL_COUNTS[row]]
        wanted -= float(shares[given].log().mean())
    assert loss(log_probs) == pytest.approx(wanted / BATCH, rel=1e-5)


def test_order_places_and_padding_do_not_matter():
    log_probs = random_logits().log_softmax(2)
    found = loss(log_probs)
    assert (
        loss(log_probs, LABELS[:, [0, 1, 2]].clone().index_put((torch.tensor([1]), torch.tensor([2])), torch.tensor(3)))
        == found
    )
    swapped = LABELS.clone()
    swapped[0] = torch.tensor([3, 0, 3])
    assert loss(log_probs, swapped) == pytest.approx(found, rel=1e-6)
    moved = log_probs.clone()
    moved[:9, 0] = moved[:9, 0].flip(0)
    moved[6:, 1] = 0.0
    assert loss(moved) == pytest.approx(found, rel=1e-6)


def test_blank_hinders_no_label():
    logits = random_logits()
    heavy = logits.clone()
    heavy[:, :, VOCABULARY] += 30
    gradients = []
    for given in (logits, heavy):
        leaf = given[:, :, :VOCABULARY].clone().requires_grad_()
        whole = torch.cat([leaf, given[:, :, VOCABULARY:]], 2)
        label_bag_loss(whole.log_softmax(2), COUNTS, LABELS, LABEL_COUNTS).backward()
        gradients.append(leaf.grad.norm())
    assert float(gradients[1]) > 0.5 * float(gradients[0])


def test_minimising_it_finds_the_labels():
    logits = torch.zeros(FRAMES, BATCH, VOCABULARY + 1, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    torch.manual_seed(0)
    for _ in range(200):
        optimizer.zero_grad()
        label_bag_loss(logits.log_softmax(2), COUNTS, LABELS, LABEL_COUNTS).backward()
        optimizer.step()
    shares = logits[:6, 1, :VOCABULARY].detach().logsumexp(0).softmax(0)
    assert set(shares.topk(2).indices.tolist()) == {4, 1}
