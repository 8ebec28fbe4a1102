"""Frames by which a label or a blank advances time: the only difference between RNN-T and TDT."""

import torch

from penstock.model.config import TransducerConfig


class FrameAdvance:
    """RNN-T is TDT with the durations blank 1 and label 0. A TDT blank of duration 0 also moves one frame."""

    def __init__(self, config: TransducerConfig, device: torch.device | str = "cpu"):
        self._durations = (
            torch.tensor(config.tdt_durations, dtype=torch.int64, device=device) if config.is_tdt else None
        )

    def __call__(self, duration: torch.Tensor | None, is_blank: torch.Tensor) -> torch.Tensor:
        """Returns the encoder frames [...] int64 that each choice moves on; is_blank: [...] bool.

        duration: [...] int64, the best duration's index into the model's list; ignored for RNN-T.
        """
        if self._durations is None:
            return is_blank.long()
        assert duration is not None
        frames = self._durations.index_select(0, duration.flatten()).view_as(is_blank)
        return torch.maximum(frames, is_blank.long())


def max_labels(config: TransducerConfig, frames: int, max_symbols: int) -> int:
    """Returns the maximum number of labels of a hypothesis in `frames` encoder frames.

    A frame holds at most `max_symbols` labels. If every duration is at least d > 0, d frames have at most one.
    """
    shortest = min(config.tdt_durations, default=0)
    return frames * max_symbols if shortest == 0 else -(-frames // shortest)
