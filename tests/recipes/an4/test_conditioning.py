"""A convolution trained as if its input were centred computes what it did."""

import pytest
import torch

from recipes.an4.conditioning import condition, release

MEAN, DEVIATION = -12.0, 3.5


@pytest.fixture
def convolution():
    torch.manual_seed(1)
    return torch.nn.Conv2d(1, 6, 3, stride=2, padding=1).double()


def features(seed: int = 2) -> torch.Tensor:
    return MEAN + DEVIATION * torch.randn(
        4, 1, 20, 16, dtype=torch.double, generator=torch.Generator().manual_seed(seed)
    )


def test_it_computes_the_same_before_in_between_and_after(convolution):
    names = convolution.state_dict().keys()
    wanted = convolution(features())
    condition(convolution, MEAN, DEVIATION)
    torch.testing.assert_close(convolution(features()), wanted)
    release(convolution)
    torch.testing.assert_close(convolution(features()), wanted)
    assert convolution.state_dict().keys() == names


def test_a_trained_one_is_released_as_it_is(convolution):
    condition(convolution, MEAN, DEVIATION)
    optimizer = torch.optim.Adam(convolution.parameters(), lr=0.01)
    for seed in range(5):
        optimizer.zero_grad()
        convolution(features(seed)).square().mean().backward()
        optimizer.step()
    wanted = convolution(features()).detach()
    release(convolution)
    torch.testing.assert_close(convolution(features()).detach(), wanted)
