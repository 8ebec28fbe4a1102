"""The rules that end a segment: the silence after its last label, its duration, and tokens that mean an end.

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
"""Additional duration of such a segment if there is no such silence."""
MAX_WARM_UP_CHUNKS = 4096


@dataclass(frozen=True)
class EndpointRules:
    """Any of the rules ends a segment; 0 turns a rule off."""

    silence_ms: int = 0
    """Time after the last label, in a segment with labels."""
    no_speech_ms: int = 0
    """Duration of a segment without labels."""
    longest_s: int = 0
    """Duration from which on `LONGEST_SILENCE_MS` without labels suffice, and `MAX_OVERRUN_S` later anything."""
    warm_up_chunks: int = 0
    """A segment ends after exactly these chunks of the stream, and results before are withheld: a client that resumes a
    stream at an endpoint repeats this audio, so that the encoder has its context."""
    at_end_tokens: bool = False
    """A segment ends with the chunk in which the model has written an end token, such as `<EOU>`."""

    @property
    def is_on(self) -> bool:
        """True if any rule may end a segment."""
        return any((self.silence_ms, self.no_speech_ms, self.longest_s, self.warm_up_chunks, self.at_end_tokens))


NO_ENDPOINTS = EndpointRules()
