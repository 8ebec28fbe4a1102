"""Samples without compression, as they arrive: bytes of any sizes to samples at the model's rate."""

import numpy as np

from penstock_common.audio.formats import HEAD_BYTES, container_name
from penstock_common.audio.monitors import EncodingMonitor
from penstock_common.audio.pcm import PcmStream, RawFormat, Remark, read_wav_header
from penstock_common.audio.tracks import MIX, Channel, Samples, TrackMaker
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.limits import MAX_CHANNELS

_RIFF = b"RIFF"
_NO_SAMPLES = np.zeros(0, np.float32)


class PcmDecoder:
    """Decodes one stream: PCM, mu-law or A-law, channels averaged or each by itself: then samples are [channels, n].

    GatewayError for a broken WAV header.

    Sums of parts do not matter: a sample may be split between two of them. Up to 5 ms wait for the resampling.
    """

    def __init__(
        self, raw: RawFormat | None, sample_rate_hz: int, may_have_header: bool = False, channel: Channel = MIX
    ):
        """`raw`: the format of audio without a header; None for WAV. `may_have_header`: the first bytes decide."""
        self._stream = PcmStream(raw)
        self._monitor = None if raw is None else EncodingMonitor(raw)
        self._begin: bytes | None = b"" if may_have_header else None
        self._head: bytes | None = b""
        """The first bytes, until they show whether the audio is a recording."""
        self._sample_rate_hz, self._channel = sample_rate_hz, channel
        self._is_plain = raw == RawFormat("s16le", sample_rate_hz) and channel == MIX and not may_have_header
        """The samples stay as they are: the server takes 16 bits, too."""
        self._part = b""  # the first byte of a sample whose second one has not come
        self._maker: TrackMaker | None = None

    @property
    def remarks(self) -> list[Remark]:
        """Whether samples look misread, and where a WAV file has less audio than it states; complete after the end."""
        return [*(self._monitor.remarks if self._monitor is not None else ()), *self._stream.remarks]

    def message(self, data: bytes) -> bytes:
        """The audio of a client's message: without a WAV header, which some clients write before each.

        GatewayError AUDIO_INVALID for a header of another format than the audio, and for audio that begins as a
        recording in a container.
        """
        if self._head is not None:
            self._head = (self._head + data[:HEAD_BYTES])[:HEAD_BYTES]
            if (name := container_name(self._head)) not in (None, "WAV"):
                message = f"the audio is a recording ({name}); accepted: samples in the format of the session"
                raise GatewayError(GatewayCode.AUDIO_INVALID, message)
            self._head = None if len(self._head) == HEAD_BYTES else self._head
        form = self._stream.format
        if form is None or self._begin is not None or not (data.startswith(_RIFF) and data[8:HEAD_BYTES] == b"WAVE"):
            return data
        try:
            header = read_wav_header(lambda start, size: data[start : start + size])
        except ValueError as error:
            raise GatewayError(GatewayCode.AUDIO_INVALID, f"the WAV header of a message is unusable: {error}") from None
        if header is None or header[0].text != form.text:
            stated = header[0].text if header else "compressed audio"
            message = f"the WAV header of a message states {stated}; accepted: {form.text}"
            raise GatewayError(GatewayCode.AUDIO_INVALID, message)
        return data[header[1] :]

    def push(self, data: bytes, is_end: bool = False) -> Samples:
        """The next bytes; returns the samples [n] that are complete: float32, or int16 where that is what arrives."""
        if self._begin is not None:
            self._begin += data
            if len(self._begin) < len(_RIFF) and not is_end:
                return _NO_SAMPLES
            data, self._begin = self._begin, None
            if data.startswith(_RIFF):
                self._stream, self._monitor = PcmStream(), None
        if self._monitor is not None:
            self._monitor.add(data)
        if self._is_plain:
            data = self._part + data
            self._part = data[len(data) // 2 * 2 :]
            return np.frombuffer(data, "<i2", len(data) // 2)
        parts: list[Samples] = []
        try:
            for block in self._stream.push(data, is_end):
                if self._maker is None:
                    channels, rate_hz = block.samples.shape[1], self._sample_rate_hz
                    self._maker = TrackMaker(channels, rate_hz, self._channel, MAX_CHANNELS, is_live=True)
                parts.append(self._tracks(self._maker.push(block)))
        except ValueError as error:
            raise GatewayError(GatewayCode.AUDIO_INVALID, f"the audio is unusable: {error}") from None
        return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0] if parts else _NO_SAMPLES

    def flush(self) -> Samples:
        """The rest [n] of what was pushed, where a segment or the stream ends. A part of a sample remains."""
        rests = self._maker.end_segment() if self._maker is not None else []
        return self._tracks(rests) if rests else _NO_SAMPLES

    def _tracks(self, tracks: list[Samples]) -> Samples:
        return tracks[0] if self._channel == MIX else np.stack(tracks)
