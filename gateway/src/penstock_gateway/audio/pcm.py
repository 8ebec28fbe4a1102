"""Samples without compression, as they arrive: bytes of any sizes to mono samples at the model's rate."""

import numpy as np

from penstock_client.audio.pcm import PcmStream, RawFormat
from penstock_client.audio.remarks import Remark
from penstock_gateway.audio.resampler import Resampler, Samples
from penstock_gateway.errors import ErrorCode, GatewayError

_RIFF = b"RIFF"
_NO_SAMPLES = np.zeros(0, np.float32)


class PcmDecoder:
    """Decodes one stream: PCM, mu-law or A-law, channels averaged. GatewayError for a broken WAV header.

    Sums of parts do not matter: a sample may be split between two of them.
    """

    def __init__(self, raw: RawFormat | None, sample_rate_hz: int, may_have_header: bool = False):
        """`raw`: the format of audio without a header; None for WAV. `may_have_header`: the first bytes decide."""
        self._stream = PcmStream(raw)
        self._begin: bytes | None = b"" if may_have_header else None
        self._sample_rate_hz = sample_rate_hz
        self._rate_hz = 0
        self._resampler: Resampler | None = None

    @property
    def remarks(self) -> list[Remark]:
        """Where a WAV file has less audio than it states; complete after `end`."""
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
        try:
            blocks = self._stream.push(data, is_end)
        except ValueError as error:
            raise GatewayError(ErrorCode.AUDIO_INVALID, f"the audio has a broken WAV header: {error}") from None
        parts = []
        for block in blocks:
            if block.rate_hz != self._rate_hz:
                parts.append(self.flush())
                self._rate_hz, self._resampler = block.rate_hz, Resampler(block.rate_hz, self._sample_rate_hz)
            mono = block.samples[:, 0] if block.samples.shape[1] == 1 else block.samples.mean(axis=1)
            assert self._resampler is not None
            parts.append(self._resampler.push(mono))
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else _NO_SAMPLES

    def flush(self) -> Samples:
        """The rest [n] of what was pushed, before a segment or the stream ends. A part of a sample remains."""
        return _NO_SAMPLES if self._resampler is None else self._resampler.flush()
