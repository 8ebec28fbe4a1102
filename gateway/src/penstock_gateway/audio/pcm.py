"""Samples without compression, as they arrive: bytes of any sizes to mono samples at the model's rate."""

import numpy as np

from penstock_client.audio.pcm import PcmStream, RawFormat, Remark
from penstock_client.audio.tracks import Samples, TrackMaker
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import MAX_CHANNELS

_RIFF = b"RIFF"
_NO_SAMPLES = np.zeros(0, np.float32)


class PcmDecoder:
    """Decodes one stream: PCM, mu-law or A-law, channels averaged. GatewayError for a broken WAV header.

    Sums of parts do not matter: a sample may be split between two of them. Up to 5 ms wait for the resampling.
    """

    def __init__(self, raw: RawFormat | None, sample_rate_hz: int, may_have_header: bool = False):
        """`raw`: the format of audio without a header; None for WAV. `may_have_header`: the first bytes decide."""
        self._stream = PcmStream(raw)
        self._begin: bytes | None = b"" if may_have_header else None
        self._sample_rate_hz = sample_rate_hz
        self._maker: TrackMaker | None = None

    @property
    def remarks(self) -> list[Remark]:
        """Where a WAV file has less audio than it states; complete after the end."""
        return self._stream.remarks

    def push(self, data: bytes, is_end: bool = False) -> Samples:
        """The next bytes; returns the samples [n] that are complete."""
        if self._begin is not None:
            self._begin += data
            if len(self._begin) < len(_RIFF) and not is_end:
                return _NO_SAMPLES
            data, self._begin = self._begin, None
            if data.startswith(_RIFF):
                self._stream = PcmStream()
        parts: list[Samples] = []
        try:
            for block in self._stream.push(data, is_end):
                if self._maker is None:
                    channels, rate_hz = block.samples.shape[1], self._sample_rate_hz
                    self._maker = TrackMaker(channels, rate_hz, max_channels=MAX_CHANNELS, is_live=True)
                parts += self._maker.push(block)
        except ValueError as error:
            raise GatewayError(ErrorCode.AUDIO_INVALID, f"the audio is unusable: {error}") from None
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else _NO_SAMPLES

    def flush(self) -> Samples:
        """The rest [n] of what was pushed, before the stream ends. A part of a sample remains."""
        rests = self._maker.flush() if self._maker is not None else []
        return rests[0] if rests else _NO_SAMPLES
