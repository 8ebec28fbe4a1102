"""The audio of one call -> samples at the model's rate, whatever Riva's encoding of it. Knows no gRPC."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock_client.audio.pcm import RawFormat
from penstock_client.audio.sound_format import (
    HEAD_BYTES,
    MPEG_BYTES,
    decoder_of,
    decoder_of_container,
    is_mpeg_audio,
    is_text,
)
from penstock_gateway.audio.container import decode_recording, in_memory, unknown_audio
from penstock_gateway.audio.pcm import PcmDecoder
from penstock_gateway.audio.resampler import Samples
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.limits import MAX_UPLOAD_BYTES

_RIFF = b"RIFF"
_NO_SAMPLES: Samples = np.zeros(0, np.float32)


@dataclass(frozen=True)
class AudioForm:
    """The form that a request declares; a header in the audio replaces it."""

    raw: RawFormat | None
    """Of audio without a header; None where it must have one, as FLAC and Ogg."""


class AudioInput:
    """Decodes the audio of one call, in pieces of any size. GatewayError names what is wrong with it.

    The first bytes decide, not the declared form: recordings of other programs, such as FLAC, Ogg, MP3 and webm, are
    collected up to `MAX_UPLOAD_BYTES` and decoded at the end, in a process of their own. Everything else is raw audio,
    or WAV with a header.
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
        self._begin = bytearray()
        """All audio of a recording; else the first bytes, until they show what the audio is."""
        self._is_recording = False

    def push(self, data: bytes) -> Samples:
        """The samples [n] that the next bytes complete; none of a recording."""
        if self._pcm is not None:
            return self._pcm.push(data)
        self._begin += data
        if not self._is_recording:
            kind = _kind(bytes(self._begin[:MPEG_BYTES]), is_whole=False)
            if kind is None:
                return _NO_SAMPLES
            if kind == "raw":
                return self._begin_pcm()
            self._is_recording = True
        if len(self._begin) > MAX_UPLOAD_BYTES:
            raise GatewayError(ErrorCode.TOO_LARGE, f"compressed streams have at most {MAX_UPLOAD_BYTES} bytes")
        return _NO_SAMPLES

    def push_recording(self, data: bytes) -> Samples:
        """As `push`, for a part of a whole recording. GatewayError TOO_LARGE for a longer one."""
        samples = self.push(data)
        self._samples += samples.size
        if self._samples > self._max_seconds * self._rate_hz:
            raise GatewayError(ErrorCode.TOO_LARGE, f"the audio is longer than {self._max_seconds:g} s")
        return samples

    def flush(self) -> Samples:
        """The samples [n] held back, before a forced end. A recording has none."""
        if self._is_compressed():
            message = "runtime_config.force_eou needs LINEAR_PCM, MULAW or ALAW: the audio is a compressed recording"
            raise GatewayError(ErrorCode.FIELD_INVALID, message, "runtime_config.force_eou")
        return self._pcm.flush() if self._pcm is not None else _NO_SAMPLES

    async def rest(self) -> AsyncGenerator[Samples, None]:
        """All samples that are left, at the end of the audio."""
        if self._is_compressed():
            with in_memory(self._begin) as recording:
                self._begin.clear()
                decoding = decode_recording(recording, self._key, self._rate_hz, self._max_seconds)
                async with aclosing(decoding) as blocks:
                    async for samples in blocks:
                        yield samples
            return
        if self._pcm is None and self._begin:
            yield self._begin_pcm()
        if self._pcm is not None:
            yield self._pcm.flush()

    def _is_compressed(self) -> bool:
        """True for a recording, as far as the bytes so far show."""
        if self._pcm is not None or not self._begin:
            return False
        return self._is_recording or _kind(bytes(self._begin[:MPEG_BYTES]), is_whole=True) == "recording"

    def _begin_pcm(self) -> Samples:
        data = bytes(self._begin)
        if self._form.raw is None and not data.startswith(_RIFF):
            raise GatewayError(ErrorCode.AUDIO_INVALID, unknown_audio(data))
        self._begin.clear()
        self._pcm = PcmDecoder(self._form.raw or RawFormat("s16le", self._rate_hz, 1), self._rate_hz, has_header=True)
        return self._pcm.push(data)


def check_recording(audio: bytes) -> None:
    """GatewayError for a whole recording that is empty or text: as raw audio it would have no words."""
    if not audio or is_text(audio):
        raise GatewayError(ErrorCode.AUDIO_INVALID, unknown_audio(audio))


def _kind(begin: bytes, is_whole: bool) -> Literal["raw", "recording"] | None:
    """Kind of audio that begins with these bytes; None if more are needed. WAV is raw audio with a header."""
    if len(begin) < HEAD_BYTES and not is_whole:
        return None
    if begin.startswith(_RIFF):
        return "raw"
    if decoder_of_container(begin) is not None:
        return "recording"
    if begin[0] != 0xFF or decoder_of(begin) is None:
        return "raw"
    if len(begin) < MPEG_BYTES and not is_whole:
        return None
    return "recording" if is_mpeg_audio(begin) else "raw"
