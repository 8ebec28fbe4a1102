"""Predictor step: reference == torch.nn.LSTM, kernel == reference, rows without a label keep every bit."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels.contracts import PredictorStates, PredictorWeights
from penstock.kernels.predictor import FusedPredictor, step_predictor
from tests.helpers.kernel_inputs import TOLERANCE, generator, on_device, random_predictor, random_predictor_states

# labels, width H, joint J, layers, rows N: below, at and above blocks of 16 rows, 16 columns and 64 sums
SHAPES = [(20, 5, 7, 1, 1), (9, 16, 16, 2, 16), (30, 65, 33, 1, 17), (50, 70, 40, 2, 5), (11, 66, 34, 3, 17)]


def random_labels(seed: int, weights: PredictorWeights, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels with blank (the last) among them, and which rows have one; the others name none that exists."""
    draw = generator(seed)
    is_label = torch.rand(rows, generator=draw) < 0.6
    labels = torch.randint(len(weights.label_gates), (rows,), generator=draw)
    labels[0] = len(weights.label_gates) - 1
    return torch.where(is_label, labels, -(10**6)), is_label


def assert_same(
    actual: PredictorStates, expected: PredictorStates, old: PredictorStates, is_label, tolerance: float
) -> None:
    for ours, theirs, before in zip(actual, expected, old, strict=True):
        assert ours.dtype == before.dtype
        torch.testing.assert_close(ours.cpu(), theirs, atol=tolerance, rtol=tolerance)
        assert torch.equal(ours.cpu()[~is_label], before[~is_label])


def check(shape: tuple, seed: int, device: str, dtype=torch.float32) -> None:
    label_count, width, joint, layers, rows = shape
    weights = random_predictor(seed, label_count, width, joint, layers, dtype)
    old = random_predictor_states(seed, weights, rows)
    labels, is_label = random_labels(seed, weights, rows)
    expected = step_predictor(weights, labels, is_label, old)
    kernel = FusedPredictor(on_device(weights, device))
    kept = on_device(old, device)
    actual = kernel(labels.to(device), is_label.to(device), kept)
    assert_same(actual, expected, old, is_label, TOLERANCE[dtype])
    assert all(torch.equal(a.cpu(), b) for a, b in zip(kept, old, strict=True)), "the old state was written to"


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_reference_is_torchs_lstm(seed):
    label_count, width, joint, layers, rows = SHAPES[seed]
    weights = random_predictor(seed, label_count, width, joint, layers)
    embedding = torch.randn(label_count + 1, width, generator=generator(seed))
    lstm = torch.nn.LSTM(width, width, layers)
    with torch.no_grad():
        for i, layer in enumerate(weights.layers):
            getattr(lstm, f"weight_hh_l{i}").copy_(layer.hidden_weight.t())
            if i:
                getattr(lstm, f"weight_ih_l{i}").copy_(layer.input_weight.t())
                getattr(lstm, f"bias_ih_l{i}").copy_(layer.bias)
                getattr(lstm, f"bias_hh_l{i}").zero_()
        table = embedding @ lstm.weight_ih_l0.t() + lstm.bias_ih_l0 + lstm.bias_hh_l0
        weights = weights._replace(label_gates=table)
        old = random_predictor_states(seed, weights, rows)
        labels, is_label = random_labels(seed, weights, rows)
        inputs = embedding[labels.clamp(min=0)].unsqueeze(0)
        output, (hidden, cell) = lstm(
            inputs, (old.hidden.transpose(0, 1).contiguous(), old.cell.transpose(0, 1).contiguous())
        )
        made = (
            output[0] @ weights.projection_weight + weights.projection_bias,
            hidden.transpose(0, 1),
            cell.transpose(0, 1),
        )
    wanted = PredictorStates(*(new.clone() for new in made))
    for new, before in zip(wanted, old, strict=True):
        new[~is_label] = before[~is_label]
    assert_same(step_predictor(weights, labels, is_label, old), wanted, old, is_label, 1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_kernel_is_the_reference(kernel_device, seed, dtype):
    check(SHAPES[seed], seed, kernel_device, dtype)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 80), st.integers(1, 80), st.integers(1, 2), st.integers(1, 20)),
    seed=st.integers(0, 1000),
)
def test_kernel_on_any_shape(kernel_device, shape, seed):
    check(shape, seed, kernel_device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_cell_may_be_finer_than_the_rest(kernel_device, dtype):
    weights = random_predictor(3, 20, 30, 12, 2, dtype)
    old = random_predictor_states(3, weights, 9)
    old = old._replace(cell=old.cell.float() + 1e-5)
    labels, is_label = random_labels(3, weights, 9)
    expected = step_predictor(weights, labels, is_label, old)
    kernel = FusedPredictor(on_device(weights, kernel_device))
    actual = kernel(labels.to(kernel_device), is_label.to(kernel_device), on_device(old, kernel_device))
    assert_same(actual, expected, old, is_label, TOLERANCE[dtype])


def test_strided_state_and_no_rows(kernel_device):
    weights = on_device(random_predictor(4, 20, 30, 12, 2), kernel_device)
    old = on_device(random_predictor_states(4, weights, 10), kernel_device)
    labels, is_label = (t.to(kernel_device) for t in random_labels(4, weights, 5))
    every_second = PredictorStates(*(tensor[::2] for tensor in old))
    kernel = FusedPredictor(weights)
    expected = step_predictor(weights, labels, is_label, every_second)
    for ours, theirs in zip(kernel(labels, is_label, every_second), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
    none = PredictorStates(*(tensor[:0] for tensor in old))
    assert kernel(labels[:0], is_label[:0], none).projected.shape == (0, 12)


def test_weights_that_do_not_fit_are_rejected():
    weights = random_predictor(0, 10, 6, 4, 2)
    first, second = weights.layers
    for wrong, message in [
        (weights._replace(projection_weight=torch.zeros(5, 4)), "the projection's width 5"),
        (weights._replace(layers=(second, second)), "has its input product in the label table"),
        (weights._replace(layers=(first, first)), "has its input product in the label table"),
    ]:
        with pytest.raises(ValueError, match=message):
            FusedPredictor(wrong)
