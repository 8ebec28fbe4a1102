"""A language model of tests as NeMo's searches take it."""

import torch

from tests.helpers.beam import TableAutomaton


class NemoFusionModel:
    """A table as NeMo's fusion models are called."""

    def __init__(self, table: TableAutomaton):
        self._table = table

    def to(self, device: torch.device) -> "NemoFusionModel":
        return self

    def get_init_states(self, batch_size: int, bos: bool) -> torch.Tensor:
        return torch.zeros(batch_size, dtype=torch.int64)

    def advance(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._table.scores[states], self._table.next_states[states]

    def get_final(self, states: torch.Tensor) -> torch.Tensor:
        return self._table.final[states]
