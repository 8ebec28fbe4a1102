"""The rules that end a segment: the silence after its last label, and its duration.

Evaluated at the end of each chunk of encoder frames, on the best hypothesis, so that segments depend on the audio
alone. Works on the host. Independent of searches, of audio and of torch.
"""

from dataclasses import dataclass

RESET, CARRY = "reset", "carry"
ENDPOINT_STATES = (RESET, CARRY)
"""The decoder's state at an endpoint: it starts anew, or it is carried into the next segment."""
LONGEST_SILENCE_MS = 160
"""Silence that ends a segment of the longest duration."""
MAX_OVERRUN_S = 5
"""Limit of the time that such a segment goes on where there is no such silence."""


@dataclass(frozen=True)
class EndpointRules:
    """Any of the rules ends a segment; 0 turns a rule off."""

    silence_ms: int = 0
    """Time after the last label, in a segment with labels."""
    no_speech_ms: int = 0
    """Duration of a segment without labels."""
    longest_s: int = 0
    """Duration from which on `LONGEST_SILENCE_MS` without labels suffice, and `MAX_OVERRUN_S` later anything."""

    @property
    def is_on(self) -> bool:
        """True if any rule may end a segment."""
        return bool(self.silence_ms or self.no_speech_ms or self.longest_s)


NO_ENDPOINTS = EndpointRules()
