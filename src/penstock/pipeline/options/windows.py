"""Attention of the recordings of an offline model, sizes of batches and steps.

Does not import torch: `penstock serve` computes memory from the sizes.
"""

from typing import TYPE_CHECKING

from penstock.errors import ErrorCode, StreamError
from penstock.model.config import FeatureConfig, ModelConfig

if TYPE_CHECKING:
    from penstock.encoder.window.attention import Band

BATCH_AUDIO_S, GPU_BATCH_AUDIO_S = 120.0, 1200.0
"""Audio of one batch; a longer recording is one by itself. A GPU needs more to be busy."""
FULL_ATTENTION_S = 600.0
LONG_BAND = (128, 128)
"""Local attention of longer recordings, as in NeMo: the time of full attention grows with the square of the length."""
DECODED_CHUNKS = 53
"""Chunks of one decoding step, 30 s: its tensors grow with frames times labels."""
MAX_CALL_PARTS = 8
"""Recordings with such a step in one call of a server; others' follow with their next polls."""


def batch_audio_s(device: str) -> float:
    """Seconds of audio of one batch on a device."""
    return BATCH_AUDIO_S if device == "cpu" else GPU_BATCH_AUDIO_S


def decoded_frames(config: ModelConfig) -> int:
    """Encoder frames of one recording in a decoding step, at most."""
    return DECODED_CHUNKS * config.encoder.decoding_chunk_frames(None)


def is_long(samples: int, sample_rate_hz: int, window: str | None = None) -> bool:
    """True for a recording with local attention; window: the stream's option."""
    return window == "long" or samples > FULL_ATTENTION_S * sample_rate_hz


def band_of(is_long: bool, trained: "Band | None") -> "Band | None":
    """What an encoder frame attends to: as trained, unless that is everything and the recording is long."""
    from penstock.encoder.window.attention import Band

    return Band(*LONG_BAND) if is_long and trained is None else trained


def check_length(samples: int, features: FeatureConfig) -> None:
    """StreamError AUDIO_INVALID for a recording without a mel frame."""
    if samples < features.hop_samples:
        message = f"{samples} samples; accepted: at least {features.hop_samples} ({features.hop_ms:g} ms)"
        raise StreamError(ErrorCode.AUDIO_INVALID, message)
