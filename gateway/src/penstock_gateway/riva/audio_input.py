"""The audio of one call -> samples at the model's rate, whatever Riva's encoding of it. Knows no gRPC."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from penstock_client.pcm import RawFormat
from penstock_gateway.audio.container import decode_recording, in_memory
from penstock_gateway.audio.pcm import PcmDecoder
from penstock_gateway.audio.resampler import Samples
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import MAX_UPLOAD_BYTES

_COMPRESSED = (b"fLaC", b"OggS")
_MAGIC_BYTES = 4
_NO_SAMPLES: Samples = np.zeros(0, np.float32)


@dataclass(frozen=True)
class AudioForm:
    """The form that a request declares; a header in the audio replaces it."""

    raw: RawFormat | None
    """Of audio without a header; None where it must be FLAC or Ogg."""


class AudioInput:
    """Decodes the audio of one call, in pieces of any size. GatewayError names what is wrong with it.

    The first four bytes decide. FLAC and Ogg are collected up to `MAX_UPLOAD_BYTES` and decoded at the end, in a
    process of their own. Everything else is raw audio, or WAV with a header.
    """

    def __init__(self, form: AudioForm, key: str, rate_hz: int, max_seconds: float):
        """`key`: name of the call's key; `rate_hz`: of the model; `max_seconds`: of a recording."""
        self._key = key
        self._form = form
        self._rate_hz = rate_hz
        self._max_seconds = max_seconds
        self._samples = 0
        """Of a whole recording so far."""
        self._pcm: PcmDecoder | None = None
        self._compressed = bytearray()  # also the first bytes, until they are four

    def push(self, data: bytes) -> Samples:
        """The samples [n] that the next bytes complete; none of compressed audio."""
        if self._pcm is not None:
            return self._pcm.push(data)
        self._compressed += data
        if len(self._compressed) < _MAGIC_BYTES:
            return _NO_SAMPLES
        if bytes(self._compressed[:_MAGIC_BYTES]) not in _COMPRESSED:
            return self._begin_pcm()
        if len(self._compressed) > MAX_UPLOAD_BYTES:
            raise GatewayError(ErrorCode.TOO_LARGE, f"FLAC and Ogg streams have at most {MAX_UPLOAD_BYTES} bytes")
        return _NO_SAMPLES

    def push_recording(self, data: bytes) -> Samples:
        """As `push`, for a part of a whole recording. GatewayError TOO_LARGE for a longer one."""
        samples = self.push(data)
        self._samples += samples.size
        if self._samples > self._max_seconds * self._rate_hz:
            raise GatewayError(ErrorCode.TOO_LARGE, f"the audio is longer than {self._max_seconds:g} s")
        return samples

    def flush(self) -> Samples:
        """The samples [n] held back, before a forced end. Compressed audio has none."""
        if self._pcm is None and len(self._compressed) >= _MAGIC_BYTES:
            message = "runtime_config.force_eou needs LINEAR_PCM, MULAW or ALAW: the audio is FLAC or Ogg"
            raise GatewayError(ErrorCode.FIELD_INVALID, message, "runtime_config.force_eou")
        return self._pcm.flush() if self._pcm is not None else _NO_SAMPLES

    async def rest(self) -> AsyncGenerator[Samples, None]:
        """All samples that are left, at the end of the audio."""
        if self._pcm is None and len(self._compressed) >= _MAGIC_BYTES:
            with in_memory(self._compressed) as recording:
                self._compressed.clear()
                decoding = decode_recording(recording, self._key, self._rate_hz, self._max_seconds)
                async with aclosing(decoding) as blocks:
                    async for samples in blocks:
                        yield samples
            return
        if self._pcm is None and self._compressed:
            yield self._begin_pcm()
        if self._pcm is not None:
            yield self._pcm.flush()

    def _begin_pcm(self) -> Samples:
        data = bytes(self._compressed)
        if self._form.raw is None:
            magic = data[:_MAGIC_BYTES]
            raise GatewayError(ErrorCode.AUDIO_INVALID, f"the audio begins with {magic!r}; accepted: FLAC or Ogg")
        self._compressed.clear()
        self._pcm = PcmDecoder(self._form.raw, self._rate_hz, has_header=True)
        return self._pcm.push(data)
