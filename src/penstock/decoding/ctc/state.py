"""The state of greedy CTC search between chunks, and its store in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.tensors.state_store import StateStore


class CtcStates(NamedTuple):
    """State of B streams, all [B]. The open token is the label of the last frame, which the next frame may repeat."""

    last_labels: torch.Tensor
    """int64, best label of the last frame; blank before the first frame."""
    first_frames: torch.Tensor
    """int64, encoder frame at which the open token began; not defined where the last label is blank."""
    scores: torch.Tensor
    """Log-probability of the open token at that frame."""
    frames_seen: torch.Tensor
    """int64, encoder frames of all earlier chunks."""


class CtcStateStore(StateStore[CtcStates]):
    """Greedy CTC states of all streams."""

    def __init__(self, head: CtcHead, slots: int):
        super().__init__(fresh_states(head, 1), slots)

    def reset(self, slots: torch.Tensor) -> None:
        """Makes `slots` [B] int64 streams without frames."""
        self.scatter(slots, self._fresh_states(len(slots)))

    def begin_segment(self, slots: torch.Tensor) -> None:
        """Counts the frames of `slots` [B] int64 from here. An open token goes on, from before frame 0."""
        states = self.gather(slots)
        first_frames = states.first_frames - states.frames_seen
        self.scatter(slots, states._replace(first_frames=first_frames, frames_seen=torch.zeros_like(first_frames)))


def fresh_states(head: CtcHead, batch: int) -> CtcStates:
    """`batch` streams without frames."""
    last_labels, first_frames, frames_seen = torch.zeros(3, batch, dtype=torch.int64, device=head.device).unbind()
    scores = torch.zeros(batch, dtype=head.dtype, device=head.device)
    return CtcStates(last_labels + head.blank, first_frames, scores, frames_seen)
