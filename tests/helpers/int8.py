"""Chunks of the bundled speech for tests of int8, and how exact their frames are."""

from penstock.encoder import int8
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from tests.helpers.streaming import mel_chunks

CONTEXT = AttentionContext(70, 6)
MAX_ENCODER_ERROR = {7: 0.08, 8: 0.03}
"""Relative, of the bundled models' frames to float32 with all products in int8; 0.008 to 0.014 with 8 bits, 0.012 to
0.048 with 7."""


def bundled_mels(checkpoint: Checkpoint) -> dict[int, list]:
    """Slot -> chunks."""
    mel = int8.speech_mel(checkpoint)
    parts = (mel[:200], mel[200:], mel[100:300] - 9.0)  # the last one 40 dB below the others
    return {slot: mel_chunks(part, checkpoint.config.encoder, CONTEXT) for slot, part in enumerate(parts)}
