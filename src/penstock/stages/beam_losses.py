"""What beams gave up to keep within their memory: counted for the server, and told once a segment. Knows no tensor."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

_log = logging.getLogger(__name__)


class BeamLosses(NamedTuple):
    """Where one of them is not 0, it may have mattered where the audio was cut into chunks."""

    forced_frames: int = 0
    """Encoder frames that hypotheses too far behind were moved on by, with blanks."""
    dropped_hypotheses: int = 0
    """Dropped because their labels differed too early from the best one's."""


NO_LOSSES = BeamLosses()


class BeamLossCount:
    """Of one lane."""

    def __init__(self, decoder: str, slots: int):
        self.total = NO_LOSSES
        """Of all streams ever."""
        self._decoder = decoder
        self._of_segments = [NO_LOSSES] * slots

    def begin(self, slots: Sequence[int]) -> None:
        """A segment begins in each of the slots."""
        for slot in slots:
            self._of_segments[slot] = NO_LOSSES

    def note(self, slot: int, losses: BeamLosses, is_end: bool) -> None:
        """losses: of the slot's segment from its start. Says at its end what they came to, if anything."""
        counted = self._of_segments[slot]
        if losses != counted:
            self.total = BeamLosses(
                self.total.forced_frames + losses.forced_frames - counted.forced_frames,
                self.total.dropped_hypotheses + losses.dropped_hypotheses - counted.dropped_hypotheses,
            )
            self._of_segments[slot] = losses
        if is_end and any(losses):
            _log.warning(
                "penstock decoder: a segment's %s beam outgrew its memory: hypotheses forced on by %d encoder frames "
                "in all, %d hypotheses dropped; a smaller beam_size may spare it that",
                self._decoder,
                *losses,
            )
