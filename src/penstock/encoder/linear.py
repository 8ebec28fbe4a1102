"""A linear layer, and how the modules pick their tensors. Knows nothing of streams."""

import torch

Tensors = dict[str, torch.Tensor]


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors under `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + ".")}


class Linear:
    """x @ weight + bias, with the weight laid out [in, out]: for few rows several times quicker on the CPU."""

    def __init__(self, tensors: Tensors, scale: float = 1.0):
        self._weight = tensors["weight"].t().contiguous() * scale
        self._bias = tensors["bias"] * scale if "bias" in tensors else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [M, in] -> [M, out]"""
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual [M, out] + self(x)"""
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)
