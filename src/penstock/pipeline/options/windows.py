"""Recordings and live streams of an offline model: sizes of batches and steps, attention, and windows.

The audio of a live stream is cut into chunks. A chunk is encoded within a window of its own, with audio before and
after it, and its frames go to the decoder. The cuts are on the grid of encoder frames and depend on nothing but the
audio.

Does not import torch: `penstock serve` computes memory from the sizes.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ErrorCode, StreamError, shown
from penstock.model.config import FeatureConfig, ModelConfig
from penstock_common.options import ACCEPTED_WINDOWS, LIVE, is_live_window

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
DEFAULT_WINDOW = "10,2,2"
"""In seconds, as NeMo's buffered inference."""
MAX_WINDOW_S = 60.0
_MAX_STEP_MS = 1000.0
"""Endpoints are placed after steps of a chunk, up to this if the chunk can be divided."""
_BITS = 16


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
    """Band of an encoder frame's attention: as trained, unless that is everything and the recording is long."""
    from penstock.encoder.window.attention import Band

    return Band(*LONG_BAND) if is_long and trained is None else trained


def check_length(samples: int, features: FeatureConfig) -> None:
    """StreamError AUDIO_INVALID for a recording without a mel frame."""
    if samples < features.hop_samples:
        message = f"{samples} samples; accepted: at least {features.hop_samples} ({features.hop_ms:g} ms)"
        raise StreamError(ErrorCode.AUDIO_INVALID, message)


class LiveWindow(NamedTuple):
    """Lengths of the windows of a live stream, in encoder frames."""

    left: int
    chunk: int
    right: int

    @property
    def frames(self) -> int:
        """Frames of the longest window."""
        return sum(self)

    @property
    def packed(self) -> int:
        """The window as one number, for a ticket."""
        return self.left | self.chunk << _BITS | self.right << 2 * _BITS

    @classmethod
    def unpack(cls, packed: int) -> "LiveWindow":
        """Reads `packed`."""
        mask = (1 << _BITS) - 1
        return cls(packed & mask, packed >> _BITS & mask, packed >> 2 * _BITS & mask)

    def complete(self, frames: int) -> int:
        """Windows whose last frame is among the first `frames` of the stream."""
        return max(frames - self.right, 0) // self.chunk

    def begin(self, number: int) -> int:
        """The first frame of a window."""
        return max(number * self.chunk - self.left, 0)

    def end(self, number: int) -> int:
        """The frame after a window, unless the stream ends before."""
        return (number + 1) * self.chunk + self.right

    def step_frames(self, frame_ms: float) -> int:
        """Frames after which endpoints are evaluated: the largest part of a chunk up to 1 s, else the whole chunk."""
        most = int(_MAX_STEP_MS / frame_ms)
        fitting = [size for size in range(2, most + 1) if self.chunk % size == 0]
        return max(fitting, default=self.chunk)

    def most_ahead(self, frame_ms: float) -> int:
        """Windows of one stream that wait for the encoder at most; the audio of others waits as samples."""
        return max(int(1000 * BATCH_AUDIO_S / frame_ms) // self.frames, 2)


def live_window(window: str | None, config: ModelConfig) -> LiveWindow | None:
    """The windows of a stream with this option; None for a file.

    StreamError OPTION_INVALID for what is not on the grid of the model's frames, or too long.
    """
    if window is None or not is_live_window(window):
        return None
    frame_ms = config.encoder_frame_ms
    menu = config.encoder.live_menu
    if window == LIVE and menu is not None:
        return LiveWindow(*map(max, menu))
    sizes = []
    for part in (DEFAULT_WINDOW if window == LIVE else window).split(","):
        try:
            frames = 1000 * float(part) / frame_ms
        except ValueError:
            raise _rejection(window, f"{part!r} is no number") from None
        if abs(frames - round(frames)) > 1e-6:
            near = " or ".join(f"{count * frame_ms / 1000:g} s" for count in (math.floor(frames), math.ceil(frames)))
            raise _rejection(window, f"{part} s is no multiple of {frame_ms:g} ms, a frame of the model, as {near}")
        sizes.append(round(frames))
    chosen = LiveWindow(*sizes)
    if not chosen.chunk:
        raise _rejection(window, f"the chunk has at least {frame_ms:g} ms")
    if menu is not None and not all(size in trained for size, trained in zip(chosen, menu, strict=True)):
        names = (
            f"{name} {' '.join(f'{size * frame_ms / 1000:g}' for size in sizes)}"
            for name, sizes in zip(("LEFT", "CHUNK", "RIGHT"), menu, strict=True)
        )
        raise _rejection(window, f"the model was trained with {', '.join(names)} (seconds)")
    if chosen.frames * frame_ms > 1000 * MAX_WINDOW_S:
        raise _rejection(window, f"a window has at most {MAX_WINDOW_S:g} s")
    return chosen


def _rejection(window: str, problem: str) -> StreamError:
    return StreamError(ErrorCode.OPTION_INVALID, f"window is {shown(window)}: {problem}; accepted: {ACCEPTED_WINDOWS}")
