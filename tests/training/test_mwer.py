"""MWER: the gradient of the expected errors, and the whole loss of a tiny head."""

import pytest
import torch

from penstock.model.config import IlmPair, TransducerConfig
from penstock.training.encoded import EncodedUtterance, collate
from penstock.training.factorized_head import FactorizedHead
from penstock.training.head_trainer import HeadTraining, train_head
from penstock.training.mwer import MwerConfig, MwerLoss, expected_errors, hypothesis_scores
from penstock.training.nbest import HypothesisLists

LABELS, D_MODEL, FRAMES = 5, 4, 6
PAIR = IlmPair(0.6, 0.4)


class FixedSearch:
    """The lists of a search that always finds the same."""

    pair = PAIR

    def __call__(self, encoded: torch.Tensor, frame_counts: torch.Tensor) -> HypothesisLists:
        labels = torch.tensor([[1, 2], [1, 0], [3, 0], [2, 0], [2, 4]])
        times = torch.tensor([[0, 3], [1, 0], [2, 0], [4, 0], [1, 3]])
        zeros = torch.zeros(5, dtype=torch.float64)
        rows, counts = torch.tensor([0, 0, 0, 1, 2]), torch.tensor([2, 1, 1, 1, 2])
        return HypothesisLists(rows, labels, times, counts, zeros, zeros)


def _head() -> FactorizedHead:
    torch.manual_seed(0)
    config = TransducerConfig(LABELS, 3, 1, 6, "tanh", (), kind="factorized")
    return FactorizedHead(config, D_MODEL)


def _batch():
    random = torch.Generator().manual_seed(1)
    frames = [torch.randn(count, D_MODEL, generator=random) for count in (FRAMES, 5, 6)]
    labels = [[1, 2], [2], [2, 3]]
    return collate([EncodedUtterance(*both, _text(both[1])) for both in zip(frames, labels, strict=True)])


def _text(labels: list[int]) -> str:
    return " ".join("abcde"[label] for label in labels)


def test_the_gradient_of_the_expected_errors():
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, dtype=torch.float64, generator=random).mul(3)
    scores[1, 2:] = float("-inf")
    errors = torch.tensor([[0, 2, 1, 5], [3, 1, 0, 0], [2, 2, 2, 2]])
    scores.requires_grad_()
    expected_errors(scores, errors).sum().backward()
    p = torch.softmax(scores.detach(), -1)
    wanted = p * (errors - (p * errors).sum(-1, keepdim=True))
    torch.testing.assert_close(scores.grad, wanted, atol=1e-12, rtol=0)
    assert (scores.grad[1, 2:] == 0).all() and scores.grad[2].abs().max() < 1e-12


def test_the_gradient_of_the_loss_by_finite_differences():
    head, batch = _head().double().eval(), _batch()
    batch = batch._replace(encoded=batch.encoded.double())
    head.ilm.requires_grad_(False)
    loss = MwerLoss(head, FixedSearch(), _text, MwerConfig(band_encoder_frames=2))
    loss(batch).backward()
    for name, parameter in head.named_parameters():
        if not parameter.requires_grad:
            continue
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for i in range(0, len(flat), max(1, len(flat) // 3)):
            kept, step = float(flat[i]), 1e-5
            values = []
            for at in (kept + step, kept - step):
                flat[i] = at
                with torch.no_grad():
                    values.append(float(loss(batch)))
            flat[i] = kept
            assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient[i]), abs=1e-6), name


def test_scores_are_those_of_equation_6():
    head, batch = _head().double().eval(), _batch()
    lists = FixedSearch()(batch.encoded, batch.frame_counts)
    encoded = batch.encoded.double()
    with torch.no_grad():
        scores = hypothesis_scores(head, encoded, batch.frame_counts, lists, PAIR, 9)
        without = hypothesis_scores(head, encoded, batch.frame_counts, lists, PAIR._replace(beta=0.0), 9)
        ilm = head.ilm(lists.labels)
    for n, labels in enumerate(lists.label_lists()):
        wanted = PAIR.beta * sum(float(ilm[n, u, label]) for u, label in enumerate(labels))
        assert float(scores[n] - without[n]) == pytest.approx(wanted, abs=1e-12)


def test_lists_of_equal_errors_are_skipped():
    head, batch = _head(), _batch()
    loss = MwerLoss(head, FixedSearch(), _text, MwerConfig(band_encoder_frames=2, reference_weight=0.0))
    only = batch._replace(references=["e e e e", *batch.references[1:]])  # 4 - 0, 4, 4 errors in the first list
    assert float(loss(only).detach()) == 0.0
    assert loss.skipped == 3
    loss(batch)
    assert loss.skipped == 5  # the first list has 0, 1 and 2 errors; the others are single
    assert loss.word_errors == (4 + 0 + 1) + (0 + 0 + 1) and loss.words == (4 + 1 + 2) + (2 + 1 + 2)


def test_the_language_model_keeps_every_bit_and_the_errors_fall():
    head, batch = _head(), _batch()
    before = head.ilm.tensors()
    loss = MwerLoss(head, FixedSearch(), _text, MwerConfig(band_encoder_frames=2))
    values: list[float] = []
    train_head(head, iter([batch] * 40), loss, HeadTraining(40, 1e-2), lambda step, value: values.append(value))
    for name, tensor in head.ilm.tensors().items():
        assert torch.equal(tensor, before[name]), name
    assert sum(values[-5:]) < sum(values[:5])
    assert not head.training
