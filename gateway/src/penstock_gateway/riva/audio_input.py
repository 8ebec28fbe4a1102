"""The audio of one call -> samples at the model's rate, whatever Riva's encoding of it. Knows no gRPC."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock_common.audio.formats import HEAD_BYTES, begins_stream, is_container, is_stream, is_text, no_audio
from penstock_common.audio.pcm import CutHeaderError, RawFormat, Remark, read_wav_header
from penstock_common.audio.tracks import EACH, MIX, Channel, Samples
from penstock_gateway.audio.container import DecodedRecording, in_memory
from penstock_gateway.audio.pcm import PcmDecoder
from penstock_gateway.errors import GatewayCode, GatewayError

_PIECE_BYTES = 32_000
_MAX_HEADER_BYTES = 1 << 16
_SEARCHED_BYTES = 1 << 14
"""The part of a whole recording in which MPEG audio may begin after other bytes."""
_NO_SAMPLES: Samples = np.zeros(0, np.float32)


@dataclass(frozen=True)
class AudioForm:
    """The form that a request declares; a header in the audio replaces it."""

    raw: RawFormat | None
    """The format of audio without a header; None where it must have one, as FLAC and Ogg."""
    is_declared: bool = False
    """True where the request names the format of `raw`: then only a format's name shows a recording, no MPEG frame."""
    channels: int = 0
    """Channels that are recognized each by itself: samples are [channels, n]; 0 for their mix."""


class CallAudio:
    """Decodes the audio of one call, in pieces of any size. GatewayError names what is wrong with it.

    The first bytes decide, not the declared form: recordings of other programs, such as FLAC, Ogg, MP3 and webm, are
    collected and decoded at the end, in a process of their own. Everything else is raw audio, or WAV with a header.
    Where the form is declared, so is what cannot be decoded.
    """

    def __init__(self, form: AudioForm, key: str, rate_hz: int, max_seconds: float, keep: Callable[[int], None]):
        """`key`: name of the call's key; `rate_hz`: of the model; `max_seconds`: of a recording.

        `keep`: takes room for what is collected, in bytes, or raises GatewayError.
        """
        self._keep = keep
        self._key = key
        self._form = form
        self._rate_hz = rate_hz
        self._max_seconds = max_seconds
        self._samples = 0
        """The samples of a whole recording so far."""
        self._pcm: PcmDecoder | None = None
        self._recording: DecodedRecording | None = None
        self._channel: Channel = EACH if form.channels else MIX
        self._begin = bytearray()
        """All audio of a recording; else the first bytes, until they show what the audio is."""
        self._is_recording = False

    @property
    def start_s(self) -> float:
        """The time of the first sample in a recording; known with its first samples."""
        return self._recording.start_s if self._recording else 0.0

    @property
    def remarks(self) -> Sequence[Remark]:
        """Gaps in the samples; known after `rest`."""
        source = self._recording or self._pcm
        return source.remarks if source else ()

    def message(self, data: bytes) -> bytes:
        """The audio of a later message without a WAV header. GatewayError AUDIO_INVALID for one of another format."""
        return data if self._pcm is None else self._pcm.message(data)

    def push(self, data: bytes) -> Samples:
        """The samples [n] that the next bytes complete; none of a recording."""
        if self._pcm is not None:
            return self._pcm.push(data)
        self._begin += data
        if not self._is_recording:
            kind = _kind(self._begin, self._form, is_whole=False)
            if kind is None:
                return _NO_SAMPLES
            if kind != "recording":
                return self._begin_pcm(kind)
            self._is_recording = True
        self._keep(len(self._begin))
        return _NO_SAMPLES

    async def recording(self, audio: bytes) -> AsyncGenerator[Samples, None]:
        """The samples of a whole recording. GatewayError TOO_LARGE for a longer one, AUDIO_INVALID for text."""
        if not audio or is_text(audio):
            reason = f"not a readable audio file: {no_audio(audio)}" if audio else "the audio is empty"
            raise GatewayError(GatewayCode.AUDIO_INVALID, reason)
        blocks = self._decoded if _kind(audio, self._form, is_whole=True) == "recording" else self._undecoded
        async with aclosing(blocks(audio)) as parts:
            async for samples in parts:
                self._samples += samples.shape[-1]
                if self._samples > self._max_seconds * self._rate_hz:
                    raise GatewayError(GatewayCode.TOO_LARGE, f"the audio is longer than {self._max_seconds:g} s")
                yield samples
        if not self._samples:
            raise GatewayError(GatewayCode.AUDIO_INVALID, "the audio has no samples")

    def forced_end(self) -> Samples:
        """The samples [n] held back at a forced end. GatewayError FIELD_INVALID for a recording."""
        kind = _kind(self._begin, self._form, is_whole=True) if self._begin else None
        if self._is_recording or kind == "recording":
            message = "runtime_config.force_eou needs LINEAR_PCM, MULAW or ALAW: the audio is a compressed recording"
            raise GatewayError(GatewayCode.FIELD_INVALID, message, "runtime_config.force_eou")
        begin = self._begin_pcm(kind) if self._begin else _NO_SAMPLES
        parts = [part for part in (begin, self._pcm.flush() if self._pcm else _NO_SAMPLES) if part.size]
        return np.concatenate(parts, axis=-1) if parts else _NO_SAMPLES

    async def rest(self) -> AsyncGenerator[Samples, None]:
        """All samples that are left, at the end of the audio."""
        if self._pcm is None and self._begin and not self._is_recording:
            kind = _kind(self._begin, self._form, is_whole=True)
            self._is_recording = kind == "recording"
            if not self._is_recording:
                yield self._begin_pcm(kind)
        if self._is_recording:
            async with aclosing(self._decoded(self._begin)) as blocks:
                async for samples in blocks:
                    yield samples
        elif self._pcm is not None:
            yield self._pcm.push(b"", is_end=True)
            yield self._pcm.flush()

    async def _decoded(self, audio: bytes | bytearray) -> AsyncGenerator[Samples, None]:
        with in_memory(audio) as file:
            self._begin.clear()
            self._recording = DecodedRecording(file, self._key, self._rate_hz, self._max_seconds, self._channel)
            has_samples = False
            try:
                async with aclosing(self._recording.blocks()) as blocks:
                    async for samples in blocks:
                        has_samples = True
                        yield samples
                return
            except GatewayError as error:
                if has_samples or not self._form.is_declared or error.code is not GatewayCode.AUDIO_INVALID:
                    raise
            self._recording, self._is_recording = None, False
            file.seek(0)
            declared = file.read()
        self._pcm = PcmDecoder(self._form.raw, self._rate_hz, channel=self._channel)
        async with aclosing(self._undecoded(declared)) as blocks:
            async for samples in blocks:
                yield samples

    async def _undecoded(self, audio: bytes) -> AsyncGenerator[Samples, None]:
        """The samples of audio that needs no decoder, in pieces."""
        for start in range(0, len(audio), _PIECE_BYTES):
            yield self.push(audio[start : start + _PIECE_BYTES])
        async with aclosing(self.rest()) as blocks:
            async for samples in blocks:
                yield samples

    def _begin_pcm(self, kind: str | None) -> Samples:
        data = bytes(self._begin)
        self._begin.clear()
        self._pcm = PcmDecoder(None if kind == "wav" else self._form.raw, self._rate_hz, channel=self._channel)
        return self._pcm.push(data)


def _kind(begin: bytes | bytearray, form: AudioForm, is_whole: bool) -> Literal["raw", "wav", "recording"] | None:
    """Kind of audio that begins with these bytes; None if more are needed. WAV is one without compression."""
    head = bytes(begin[:_SEARCHED_BYTES])
    if len(head) < HEAD_BYTES and not is_whole:
        return None
    if head.startswith(b"RIFF"):
        try:
            return "wav" if read_wav_header(lambda start, size: bytes(begin[start : start + size])) else "recording"
        except ValueError as error:
            needs_more = isinstance(error, CutHeaderError) and not is_whole and len(begin) < _MAX_HEADER_BYTES
            return None if needs_more else "recording"
    if form.raw is None or is_container(head[:HEAD_BYTES]):
        return "recording"
    if form.is_declared:
        return "raw"
    is_mpeg = is_stream(head) if is_whole else begins_stream(head)
    return None if is_mpeg is None else "recording" if is_mpeg else "raw"
