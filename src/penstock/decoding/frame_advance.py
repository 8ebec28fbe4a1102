"""How far a label or a blank moves time: the only difference between RNN-T and TDT."""

import torch

from penstock.config import TransducerConfig
from penstock.decoding.networks import Scores


class FrameAdvance:
    """RNN-T is TDT with the durations blank 1 and label 0; a TDT blank of duration 0 moves one frame all the same."""

    def __init__(self, config: TransducerConfig, device="cpu"):
        self._durations = (
            torch.tensor(config.tdt_durations, dtype=torch.int64, device=device) if config.is_tdt else None
        )

    def __call__(self, scores: Scores, is_blank: torch.Tensor) -> torch.Tensor:
        """Frames [N] int64 that each of N choices moves on; is_blank: [N] bool."""
        if self._durations is None:
            return is_blank.long()
        frames = self._durations.index_select(0, scores.durations.argmax(dim=-1))
        return torch.maximum(frames, is_blank.long())
