"""How far a label or a blank moves time: the only difference between RNN-T and TDT."""

import torch

from penstock.config import TransducerConfig


class FrameAdvance:
    """RNN-T is TDT with the durations blank 1 and label 0; a TDT blank of duration 0 moves one frame all the same."""

    def __init__(self, config: TransducerConfig, device="cpu"):
        self._durations = (
            torch.tensor(config.tdt_durations, dtype=torch.int64, device=device) if config.is_tdt else None
        )

    def __call__(self, duration: torch.Tensor | None, is_blank: torch.Tensor) -> torch.Tensor:
        """Frames [...] int64 that each choice moves on; is_blank: [...] bool.

        duration: [...] int64, the best duration's index into the model's list; not looked at for RNN-T.
        """
        if self._durations is None:
            return is_blank.long()
        frames = self._durations.index_select(0, duration.flatten()).view_as(is_blank)
        return torch.maximum(frames, is_blank.long())
