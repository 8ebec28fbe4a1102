"""Joint and arg-max: reference == float64, kernel == reference, on odd shapes and where a wrong mask would show."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels import joint as joint_module
from penstock.kernels.contracts import JointChoice, JointWeights
from penstock.kernels.joint import FusedJoint
from tests.helpers.kernel_inputs import TOLERANCE, generator, on_device, random_joint
from tests.helpers.reference.joint import choose_labels

# labels, joint width, durations, activation, N, W: sizes below, at and above a block of 64, alone and in many blocks
SHAPES = [
    (20, 64, 0, "relu", 1, 1),
    (1, 3, 2, "tanh", 2, 3),
    (63, 65, 5, "tanh", 3, 5),
    (64, 128, 0, "sigmoid", 1, 16),
    (65, 63, 15, "sigmoid", 5, 7),
    (131, 70, 16, "relu", 17, 8),
    (513, 130, 5, "tanh", 33, 2),
    (260, 64, 5, "relu", 70, 1),
]
IMPLEMENTATIONS = {"reference": lambda weights: partial(choose_labels, weights), "kernel": FusedJoint}
# One program for the whole vocabulary, some blocks each, one block each: small inputs alone would show only the last.
PROGRAMS = {torch.float32: 1, torch.float16: 3, torch.bfloat16: 256}


_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class PlainScores(NamedTuple):
    """Log-probabilities of pairs, [N, W, ...]."""

    blank: torch.Tensor
    labels: torch.Tensor
    """[..., V]"""
    durations: torch.Tensor | None
    """[..., D]"""
    totals: torch.Tensor | None
    """[..., V], labels with extra scores."""


def plain_scores(weights, frames: torch.Tensor, predictions: torch.Tensor, extra=None) -> PlainScores:
    """frames: [N, W, J]; predictions: [N, J]; extra: [N, V]."""
    hidden = _ACTIVATIONS[weights.activation](frames.double() + predictions.double().unsqueeze(1))
    logits = hidden @ weights.weight.double() + weights.bias.double()
    split = weights.vocabulary_size + 1
    log_probs = logits[..., :split].log_softmax(-1)
    labels = log_probs[..., :-1]
    durations = logits[..., split:].log_softmax(-1) if logits.shape[-1] > split else None
    totals = None if extra is None else labels + extra.double().unsqueeze(1)
    return PlainScores(log_probs[..., -1], labels, durations, totals)


def share_out(monkeypatch, programs: int) -> None:
    monkeypatch.setattr(joint_module, "TARGET_PROGRAMS", programs)


@pytest.fixture(params=PROGRAMS.values())
def joint_device(request, kernel_device, monkeypatch) -> str:
    """The device, with the vocabulary shared out in each way."""
    share_out(monkeypatch, request.param)
    return kernel_device


def random_rows(seed: int, weights: JointWeights, rows: int, window: int) -> tuple[torch.Tensor, ...]:
    draw, dtype = generator(seed), weights.weight.dtype
    width = len(weights.weight)
    frames = torch.randn(rows, window, width, generator=draw).to(dtype)
    extra = 3 * torch.randn(rows, weights.vocabulary_size, generator=draw)
    return frames, torch.randn(rows, width, generator=draw).to(dtype), extra


def assert_agrees(choice: JointChoice, plain: PlainScores, tolerance: float) -> None:
    """Scores are the plain ones; a choice may differ only for one that is as good within the tolerance."""

    def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(actual.cpu().double(), expected, atol=tolerance, rtol=tolerance)

    def picked(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        assert index.dtype == torch.int64
        return scores.gather(-1, index.cpu().unsqueeze(-1)).squeeze(-1)

    close(choice.blank_score, plain.blank)
    close(choice.label_score, plain.labels.amax(-1))
    close(choice.label_score, picked(plain.labels, choice.label))
    assert (choice.duration is None) == (plain.durations is None)
    if plain.durations is not None:
        close(choice.duration_score, plain.durations.amax(-1))
        close(choice.duration_score, picked(plain.durations, choice.duration))
    assert (choice.fused_label is None) == (plain.totals is None)
    if plain.totals is not None:
        close(choice.fused_total, plain.totals.amax(-1))
        close(choice.fused_total, picked(plain.totals, choice.fused_label))
        close(choice.fused_label_score, picked(plain.labels, choice.fused_label))


def check(shape: tuple, seed: int, implementation: str, device="cpu", dtype=torch.float32, has_extra=True) -> None:
    labels, joint, durations, activation, rows, window = shape
    weights = random_joint(seed, labels, joint, durations, activation, dtype)
    frames, predictions, extra = random_rows(seed, weights, rows, window)
    extra = extra if has_extra else None
    plain = plain_scores(weights, frames, predictions, extra)
    fused = IMPLEMENTATIONS[implementation](on_device(weights, device))
    frames, predictions = frames.to(device), predictions.to(device)
    assert_agrees(fused(frames, predictions, None if extra is None else extra.to(device)), plain, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_reference_is_the_plain_joint(seed, dtype):
    check(SHAPES[seed], seed, "reference", dtype=dtype, has_extra=seed % 3 != 0)


@pytest.mark.parametrize("seed", range(len(SHAPES)))
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_kernel_is_the_plain_joint(kernel_device, monkeypatch, seed, dtype):
    share_out(monkeypatch, PROGRAMS[dtype])
    check(SHAPES[seed], seed, "kernel", kernel_device, dtype, has_extra=seed % 3 != 0)


def test_kernel_with_a_large_vocabulary(kernel_device, monkeypatch):
    share_out(monkeypatch, 5)
    labels = 4100 if kernel_device == "cpu" else 16384  # interpreted, a block takes milliseconds
    check((labels, 64, 5, "relu", 2, 3), 0, "kernel", kernel_device)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(
        st.integers(1, 200), st.integers(1, 150), st.integers(0, 20), st.sampled_from(["relu", "tanh", "sigmoid"]),
        st.integers(1, 20), st.integers(1, 9),
    ),
    seed=st.integers(0, 1000), has_extra=st.booleans(), programs=st.sampled_from([1, 2, 5, 256]),
)  # fmt: skip
def test_kernel_on_any_shape(kernel_device, monkeypatch, shape, seed, has_extra, programs):
    share_out(monkeypatch, programs)
    check(shape, seed, "kernel", kernel_device, has_extra=has_extra)


def fixed_joint(logits: torch.Tensor, labels: int, implementation: str, device: str) -> tuple[Callable, torch.Tensor]:
    """A joint with exactly `logits` [V + 1 + D] for every pair, and its inputs [1, 3]."""
    weights = JointWeights(torch.zeros(3, len(logits)), logits, labels, "relu")
    return IMPLEMENTATIONS[implementation](on_device(weights, device)), torch.zeros(1, 3, device=device)


@pytest.mark.parametrize("labels", [5, 63, 64, 65, 200])
def test_padding_never_wins(joint_device, labels):
    """Everything real is far below the zeros that padding is made of."""
    logits = torch.full((labels + 1 + 3,), -1e4)
    logits[labels - 1] += 2  # the last label, beside the padding
    logits[-1] += 1  # the last duration
    for implementation in IMPLEMENTATIONS:
        joint, rows = fixed_joint(logits, labels, implementation, joint_device)
        choice = joint(rows, rows, torch.full((1, labels), -50.0, device=joint_device))
        assert choice.label.item() == choice.fused_label.item() == labels - 1
        assert choice.duration.item() == 2
        total = torch.logsumexp(logits[: labels + 1] + 1e4, 0)
        for score, expected in (
            (choice.blank_score, -total),
            (choice.label_score, 2 - total),
            (choice.fused_total, -48 - total),
            (choice.duration_score, 1 - torch.logsumexp(logits[-3:] + 1e4, 0)),
        ):
            torch.testing.assert_close(score.cpu(), expected.view(1), atol=2e-3, rtol=0)  # 1e4 leaves 1e-3


@pytest.mark.parametrize("places", [(3, 4), (0, 130), (63, 64), (64, 127, 128), (129, 130)])
def test_the_first_of_equals_is_taken(joint_device, places):
    """Within a block, across blocks of one program, and across programs."""
    logits = torch.zeros(131 + 1 + 4)
    logits[list(places)] = 5.0
    logits[-3:] = 1.0  # durations 1, 2 and 3 of four
    extra = torch.zeros(1, 131, device=joint_device)
    for implementation in IMPLEMENTATIONS:
        joint, rows = fixed_joint(logits, 131, implementation, joint_device)
        choice = joint(rows, rows, extra)
        assert choice.label.item() == choice.fused_label.item() == places[0], implementation
        assert choice.duration.item() == 1, implementation
        swapped = joint(rows, rows, extra.clone().index_fill_(1, torch.tensor(places[0], device=joint_device), -5.0))
        assert swapped.fused_label.item() == places[1], implementation
        assert swapped.label.item() == places[0], implementation


@pytest.mark.parametrize("allowed", [(), (0,), (70,), (199,), (70, 130)])
def test_labels_may_be_impossible(joint_device, allowed):
    """All labels but some are -inf: no NaN, and the right one is found, whole blocks of -inf before or after it."""
    logits = torch.full((200 + 1,), -torch.inf)
    logits[200] = 1.0
    logits[list(allowed)] = 0.0
    for implementation in IMPLEMENTATIONS:
        joint, rows = fixed_joint(logits, 200, implementation, joint_device)
        choice = joint(rows, rows, torch.zeros(1, 200, device=joint_device))
        label = allowed[0] if allowed else 0
        assert choice.label.item() == choice.fused_label.item() == label, implementation
        expected = logits.log_softmax(0)
        for score, index in ((choice.blank_score, 200), (choice.label_score, label), (choice.fused_total, label)):
            torch.testing.assert_close(score.cpu(), expected[index].view(1))


def test_extra_may_forbid(joint_device):
    """-inf of a language model: all labels but one, then all of them."""
    logits = torch.arange(201.0) % 67
    extra = torch.full((2, 200), -torch.inf)
    extra[0, 150] = -1.0
    for implementation in IMPLEMENTATIONS:
        joint, rows = fixed_joint(logits, 200, implementation, joint_device)
        choice = joint(rows.expand(2, 3), rows.expand(2, 3), extra.to(joint_device))
        assert choice.fused_label.tolist() == [150, 0], implementation
        assert choice.label.tolist() == [66, 66], implementation
        expected = logits.log_softmax(0)[[150, 0]]
        torch.testing.assert_close(choice.fused_label_score.cpu(), expected)
        torch.testing.assert_close(choice.fused_total.cpu(), torch.stack([expected[0] - 1, -torch.tensor(torch.inf)]))


def test_rows_may_be_strided_and_shared(kernel_device):
    weights = on_device(random_joint(1, 70, 66, 3, "tanh"), kernel_device)
    frames, predictions, extra = (t.to(kernel_device) for t in random_rows(1, weights, 6, 9))
    joint, reference = FusedJoint(weights), partial(choose_labels, weights)
    cases = [
        (frames[::2, 2:7], predictions[1::2], extra[::2]),
        (frames[:1].expand(6, -1, -1), predictions, extra),
        (frames[:, :1], predictions[:1].expand(6, -1), extra[:1].expand(6, -1)),
    ]
    for case in cases:
        for ours, theirs in zip(joint(*case), reference(*case), strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_pairs_without_a_window_and_no_pairs(kernel_device):
    weights = on_device(random_joint(2, 30, 8, 0, "relu"), kernel_device)
    frames, predictions, extra = (t.to(kernel_device) for t in random_rows(2, weights, 5, 1))
    joint = FusedJoint(weights)
    flat, windowed = joint(frames[:, 0], predictions, extra), joint(frames, predictions, extra)
    assert torch.equal(flat.label, windowed.label[:, 0])
    assert joint(frames[:0], predictions[:0]).label.shape == (0, 1)


def test_what_cannot_be_a_joint_is_rejected():
    weights = random_joint(0, 10, 4, 2, "relu")
    for wrong, message in [
        (weights._replace(activation="gelu"), "unknown joint activation 'gelu'"),
        (weights._replace(bias=weights.bias[:-1]), "has no 10 labels"),
        (weights._replace(vocabulary_size=13), "has no 13 labels"),
        (weights._replace(weight=weights.weight.double()), "float64"),
    ]:
        with pytest.raises(ValueError, match=message):
            FusedJoint(wrong)
