"""Samples without compression, as they arrive: bytes of any sizes to mono samples at the model's rate."""

import numpy as np

from penstock_client.audio.pcm import CutHeaderError, PcmFormat, RawFormat, raw_pcm, read_wav_header
from penstock_gateway.audio.resampler import Resampler, Samples
from penstock_gateway.errors import ErrorCode, GatewayError

_MAX_HEADER_BYTES = 1 << 16
_NO_SAMPLES = np.zeros(0, np.float32)


class PcmDecoder:
    """Decodes one stream: PCM, mu-law or A-law, channels averaged. GatewayError for a broken WAV header.

    Sums of parts do not matter: a sample may be split between two of them.
    """

    def __init__(self, raw: RawFormat, sample_rate_hz: int, has_header: bool = False):
        """`raw`: the format of audio without a header; with `has_header` a WAV header in front replaces it."""
        self._sample_rate_hz = sample_rate_hz
        self._raw = raw_pcm(raw)
        self._pending = b""
        self._format: PcmFormat | None = None
        self._left_bytes: int | None = None
        if not has_header:
            self._begin(self._raw)

    def push(self, data: bytes) -> Samples:
        """The next bytes; returns the samples [n] that are complete."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        if self._format is None:
            header_bytes = self._read_header(data)
            if header_bytes is None:
                self._pending = data
                return _NO_SAMPLES
            data = data[header_bytes:]
        assert self._format is not None
        if self._left_bytes is not None:  # chunks after the audio of a WAV file are not audio
            data = data[: self._left_bytes]
        whole = len(data) // self._format.frame_bytes * self._format.frame_bytes
        if self._left_bytes is not None:
            self._left_bytes -= whole
        data, self._pending = data[:whole], data[whole:]
        return self._resampler.push(self._decode(self._format, data))

    def flush(self) -> Samples:
        """The rest [n] of what was pushed, before a segment or the stream ends. A part of a sample remains."""
        if self._format is None:
            return _NO_SAMPLES
        return self._resampler.flush()

    def _read_header(self, data: bytes) -> int | None:
        """Bytes of the header, 0 without one; None where more are needed."""
        if len(data) < 12 and b"RIFF".startswith(data[:4]):
            return None
        try:
            header = read_wav_header(lambda start, size: data[start : start + size])
        except CutHeaderError:
            if len(data) < _MAX_HEADER_BYTES:
                return None
            raise GatewayError(ErrorCode.AUDIO_INVALID, "the WAV header is longer than 64 KiB") from None
        except ValueError as error:
            raise GatewayError(ErrorCode.AUDIO_INVALID, f"the audio has a broken WAV header: {error}") from None
        if header is None and data[:4] == b"RIFF":
            raise GatewayError(
                ErrorCode.AUDIO_INVALID, "the WAV audio is compressed; accepted: PCM, float, mu-law and A-law"
            )
        try:
            self._begin(header[0] if header else self._raw)
        except ValueError as error:
            raise GatewayError(ErrorCode.AUDIO_INVALID, f"the WAV header {error}") from None
        return header[1] if header else 0

    def _begin(self, form: PcmFormat) -> None:
        self._format, self._left_bytes = form, form.data_bytes
        self._resampler = Resampler(form.sample_rate_hz, self._sample_rate_hz)

    @staticmethod
    def _decode(form: PcmFormat, data: bytes) -> Samples:
        samples = form.decode(data)
        if form.channels > 1:
            samples = samples.reshape(-1, form.channels).mean(axis=1)
        return samples
