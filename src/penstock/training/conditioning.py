"""Lets an optimizer see a first convolution whose input is centred, though the input is not.

Raw log-mel features have a mean of -12: every weight's gradient then holds -12 times the bias's, and a step of Adam
moves what the layer puts out by a tenth of its deviation whatever was said. The convolution itself stays as it is, its
zero padding included; only what is stored and trained is changed.
"""

import torch
from torch.nn.utils import parametrize


def condition(convolution: torch.nn.Conv2d, mean: float, deviation: float) -> None:
    """Stores the weights for inputs (x - mean) / deviation. What the layer computes stays the same."""
    parametrize.register_parametrization(convolution, "weight", _Scaled(deviation))
    parametrize.register_parametrization(convolution, "bias", _Shifted(convolution, mean))


def release(convolution: torch.nn.Conv2d) -> None:
    """Stores plain weights again. What the layer computes stays the same."""
    for name in ("bias", "weight"):  # the bias is computed from the weight
        parametrize.remove_parametrizations(convolution, name)


class _Scaled(torch.nn.Module):
    def __init__(self, deviation: float):
        super().__init__()
        self._deviation = deviation

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """[out, in, h, w], as stored -> for raw inputs."""
        return weight / self._deviation

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """For raw inputs -> as stored."""
        return weight * self._deviation


class _Shifted(torch.nn.Module):
    def __init__(self, convolution: torch.nn.Conv2d, mean: float):
        super().__init__()
        self._mean = mean
        self._convolution = (convolution,)  # not as a submodule: it holds this one

    def forward(self, bias: torch.Tensor) -> torch.Tensor:
        """[out], as stored -> for raw inputs."""
        return bias - self._of_mean()

    def right_inverse(self, bias: torch.Tensor) -> torch.Tensor:
        """For raw inputs -> as stored."""
        return bias + self._of_mean()

    def _of_mean(self) -> torch.Tensor:
        """What the layer makes of the mean."""
        return self._mean * self._convolution[0].weight.sum(dim=(1, 2, 3))
