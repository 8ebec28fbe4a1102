"""MWER: the gradient of the expected errors, the whole loss of a tiny head, and MWER with the encoder in the loop."""

import dataclasses
from pathlib import Path

import pytest
import torch

from penstock.model.bundle import Checkpoint
from penstock.model.config import IlmPair, TransducerConfig
from recipes.training.encoded import EncodedUtterance, collate
from recipes.training.heads import FactorizedHead, StandardHead
from recipes.training.mwer import (
    HypothesisLists,
    MwerConfig,
    MwerLoss,
    MwerSteps,
    NBestSearch,
    expected_errors,
    hypothesis_scores,
)
from recipes.training.train_head import HeadTraining, train_head
from recipes.training.trainer import MWER, Trainer, TrainerConfig
from tests.helpers.tiny_model import LABELS as TOY_LABELS
from tests.helpers.tiny_model import WIDTH, TinyModel, toy_batch, toy_text

MODEL = Path(__file__).parents[3] / "models" / "an4-rnnt-hybrid"

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


def mwer_trainer(every: int = 3, **config) -> tuple[Trainer, StandardHead]:
    """A trainer of two heads, and the one that has MWER; the model's configuration is read for the head alone."""
    torch.manual_seed(0)
    transducer = TransducerConfig(TOY_LABELS, 8, 1, 8, "relu", ())
    head = StandardHead(transducer, WIDTH)
    model = dataclasses.replace(Checkpoint(MODEL).config, ctc=None)
    loss = MwerLoss(head, NBestSearch(model, head), toy_text, MwerConfig(reference_weight=0.0))
    steps = MwerSteps("standard", loss, 1.0, every)
    settings = TrainerConfig(**({"steps": 100, "peak_learning_rate": 0.01, "warm_up": 0.0} | config))
    return Trainer({"rnnt": TinyModel()}, {"rnnt": ()}, settings, {"standard": head}, steps), head


def test_one_step_in_three_of_the_head_has_mwer():
    made, _ = mwer_trainer()
    drawn = [made.train_step(toy_batch(seed)).keys() for seed in range(30)]
    trained = [step for step in range(0, 30, 3) if "standard" in drawn[step]]
    assert [step for step in range(30) if MWER in drawn[step]] == trained and len(trained) >= 2


def test_the_gradient_of_mwer_reaches_the_encoder():
    made, head = mwer_trainer()
    made.losses(toy_batch(1), ["standard", MWER])[MWER].backward()
    for module in (made.module["encoder"], head):
        assert all(bool(p.grad.any()) and bool(torch.isfinite(p.grad).all()) for p in module.parameters())
    assert all(p.grad is None for p in made.module["rnnt_joint"].parameters())


def test_words_without_a_reference_are_unlearned():
    made, head = mwer_trainer()
    made.module.eval()
    output = head.joint["output"]
    with torch.no_grad():  # blank is a little likelier than a label
        output.weight.mul_(0.1)
        output.bias.zero_()[-1] = 1.0
    silent = toy_batch(1)
    silent = silent._replace(label_counts=torch.zeros_like(silent.label_counts), references=[""] * len(silent.mel))
    made.losses(silent, [MWER])[MWER].backward()
    assert output.bias.grad[-1] < 0 < output.bias.grad[:-1].sum(), "a step makes blank likelier"
    assert made._mwer.loss.words == 0 and made._mwer.loss.skipped == 0


def test_frames_that_are_not_finite_have_no_n_best_lists():
    made, _ = mwer_trainer(every=1)
    bad = toy_batch(2)
    bad.mel[0, 0, 0] = float("nan")
    before = [p.detach().clone() for p in made.module.parameters()]
    drawn = [made.train_step(bad).keys() for _ in range(6)]
    assert not any(MWER in names for names in drawn) and any("standard" in names for names in drawn)
    assert all(torch.equal(*both) for both in zip(before, made.module.parameters(), strict=True))
