"""Jumps in time by the durations that a network has chosen."""

import pytest
import torch

from penstock.decoding.transducer.interface import FrameAdvance
from penstock.model.config import TransducerConfig


@pytest.mark.parametrize(
    ("durations", "chosen", "after_label", "after_blank"),
    [
        ((), None, 0, 1),
        ((0, 1, 2), 0, 0, 1),
        ((0, 1, 2), 2, 2, 2),
        ((0, 2, 4), 1, 2, 2),
        ((0, 2, 4), 2, 4, 4),
        ((1, 0, 3), 0, 1, 1),
        ((1, 0, 3), 1, 0, 1),
        ((7,), 0, 7, 7),
    ],
)
def test_frames(durations, chosen, after_label, after_blank):
    advance = FrameAdvance(TransducerConfig(5, 4, 1, 4, "relu", durations))
    duration = None if chosen is None else torch.tensor([chosen, chosen])
    frames = advance(duration, torch.tensor([False, True]))
    assert frames.tolist() == [after_label, after_blank]
    assert frames.dtype == torch.int64
