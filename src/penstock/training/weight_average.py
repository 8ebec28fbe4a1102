"""The average of a module's parameters over training, which is what is exported. Knows no loop and no file."""

import torch


class WeightAverage:
    """Exponential moving average of a module's parameters."""

    def __init__(self, module: torch.nn.Module, decay: float):
        self.tensors = {name: p.detach().clone() for name, p in module.named_parameters()}
        self._decay = decay
        self._updates = 0

    def update(self, module: torch.nn.Module) -> None:
        """Moves the average; early on it forgets faster, so that it does not hold the start."""
        self._updates += 1
        share = 1 - min(self._decay, self._updates / (self._updates + 10))
        new = [p.detach() for _, p in module.named_parameters()]
        torch._foreach_lerp_(list(self.tensors.values()), new, share)

    def swap(self, module: torch.nn.Module) -> None:
        """Exchanges the module's parameters with the average; twice is nothing."""
        for name, parameter in module.named_parameters():
            kept = parameter.detach().clone()
            parameter.data.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

    def state(self) -> dict:
        """For a checkpoint."""
        return {"tensors": self.tensors, "updates": self._updates}

    def load(self, state: dict) -> None:
        """Takes a checkpoint's."""
        self.tensors, self._updates = state["tensors"], state["updates"]
