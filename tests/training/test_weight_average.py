"""The moving average of parameters."""

import pytest
import torch

from penstock.training.weight_average import WeightAverage


def module(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))


def values(of: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


def test_swapping_exchanges_and_twice_is_nothing():
    trained, start = module(0), values(module(0))
    average = WeightAverage(trained, 0.9)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1.0)
    average.swap(trained)
    assert torch.equal(values(trained), start)
    average.swap(trained)
    assert torch.equal(values(trained), start + 1.0)


def test_converges_to_parameters_that_stay():
    average = WeightAverage(module(0), 0.9)
    target = module(1)
    for _ in range(200):
        average.update(target)
    found = torch.cat([tensor.flatten() for tensor in average.tensors.values()])
    torch.testing.assert_close(found, values(target), atol=1e-5, rtol=0)


def test_forgets_faster_than_its_decay_early_on():
    single = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(single.weight)
    average = WeightAverage(single, 0.99)
    torch.nn.init.ones_(single.weight)
    weight = average.tensors["weight"]
    wanted = 0.0
    for update in range(1, 2000):
        average.update(single)
        wanted += (1 - min(0.99, update / (update + 10))) * (1 - wanted)
        assert float(weight) == pytest.approx(wanted, abs=1e-4)


def test_its_state_goes_on_elsewhere():
    trained = module(0)
    average = WeightAverage(trained, 0.95)
    average.update(module(1))
    other = WeightAverage(module(5), 0.95)
    other.load(average.state())
    for kept in (average, other):
        kept.update(module(2))
    for name, tensor in average.tensors.items():
        assert torch.equal(tensor, other.tensors[name])
