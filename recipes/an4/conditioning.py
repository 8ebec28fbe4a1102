"""Reparametrizes a first convolution as if its input were centered, for the optimizer."""

import torch
from torch.nn.utils import parametrize


def condition(convolution: torch.nn.Conv2d, mean: float, deviation: float) -> None:
    """Stores the weights for inputs (x - mean) / deviation; the layer's output stays the same.

    Raw log-mel features have a mean of -12. Every weight's gradient then holds -12 times the bias's, and a step of Adam
    moves the layer's output by a tenth of its deviation whatever the input. The zero padding stays as it is.
    """
    parametrize.register_parametrization(convolution, "weight", _Scaled(deviation))
    parametrize.register_parametrization(convolution, "bias", _Shifted(convolution, mean))


def release(convolution: torch.nn.Conv2d) -> None:
    """Stores plain weights again; the layer's output stays the same."""
    for name in ("bias", "weight"):  # the bias is computed from the weight
        parametrize.remove_parametrizations(convolution, name)


class _Scaled(torch.nn.Module):
    def __init__(self, deviation: float):
        super().__init__()
        self._deviation = deviation

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """[out, in, h, w]: stored weights -> weights for raw inputs."""
        return weight / self._deviation

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Weights for raw inputs -> stored weights."""
        return weight * self._deviation


class _Shifted(torch.nn.Module):
    def __init__(self, convolution: torch.nn.Conv2d, mean: float):
        super().__init__()
        self._mean = mean
        self._convolution = (convolution,)  # in a tuple: a submodule would be a cycle

    def forward(self, bias: torch.Tensor) -> torch.Tensor:
        """[out]: stored bias -> bias for raw inputs."""
        return bias - self._mean_output()

    def right_inverse(self, bias: torch.Tensor) -> torch.Tensor:
        """Bias for raw inputs -> stored bias."""
        return bias + self._mean_output()

    def _mean_output(self) -> torch.Tensor:
        return self._mean * self._convolution[0].weight.sum(dim=(1, 2, 3))
