"""Encodings of samples without compression, as in raw audio and WAV files; and the header of a WAV stream."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from penstock_client.audio.sound_file import UNKNOWN_SIZE_BYTES

RawEncoding = Literal["s16le", "f32le", "mulaw", "alaw"]
"""16-bit integers, 32-bit floats, and the two encodings of telephony (ITU-T G.711) with 8 bits."""

_MAX_HEADER_BYTES = 1 << 20
_MAX_RATE_HZ = 768_000
_MAX_CHANNELS = 64


@dataclass(frozen=True)
class RawFormat:
    """The format of samples without a header, channels interleaved. Raises ValueError for unsuitable values."""

    encoding: RawEncoding
    sample_rate_hz: int
    channels: int = 1

    def __post_init__(self) -> None:
        if self.encoding not in get_args(RawEncoding):
            raise ValueError(f"raw format is {self.encoding!r}, expected one of {', '.join(get_args(RawEncoding))}")
        for name, value, maximum in (
            ("sample rate", self.sample_rate_hz, _MAX_RATE_HZ),
            ("number of channels", self.channels, _MAX_CHANNELS),
        ):
            if type(value) is not int or not 1 <= value <= maximum:
                raise ValueError(f"{name} is {value!r}, expected an integer from 1 to {maximum}")


class PcmFormat(NamedTuple):
    """Encoding of samples as bytes."""

    sample_bytes: int
    decode: Callable[[bytes], npt.NDArray[np.float32]]
    """Bytes of whole samples to [n], full scale 1."""
    sample_rate_hz: int
    channels: int
    data_bytes: int | None = None
    """The length of the audio; None where it is not known."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.sample_bytes * self.channels


def raw_pcm(raw: RawFormat) -> PcmFormat:
    """The format of raw audio."""
    return PcmFormat(*_RAW[raw.encoding], raw.sample_rate_hz, raw.channels)


def wav_pcm(chunk: bytes, data_bytes: int | None) -> PcmFormat | None:
    """The format that a WAV file's `fmt ` chunk states; None for a compressed one. Raises ValueError for a broken one.

    Source: Microsoft's WAVEFORMATEX and WAVEFORMATEXTENSIBLE.
    """
    if len(chunk) < 16:
        raise ValueError("not a readable audio file: its header is cut")
    tag, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if (tag, bits) not in _WAV:
        return None
    if not (1 <= channels <= _MAX_CHANNELS and 1 <= rate_hz <= _MAX_RATE_HZ):
        raise ValueError(f"not a readable audio file: its header states {channels} channels at {rate_hz} Hz")
    return PcmFormat(*_WAV[tag, bits], rate_hz, channels, data_bytes)


class CutHeaderError(ValueError):
    """The bytes end before the header does."""

    def __init__(self, message: str = "not a readable audio file: its header is cut"):
        super().__init__(message)


def read_wav_header(peek: Callable[[int, int], bytes]) -> tuple[PcmFormat, int] | None:
    """The format of a WAV stream, and the bytes in front of its samples; None for another or a compressed format.

    `peek` returns the `size` bytes from a position, less where the stream ends. Raises ValueError for a broken header.
    """
    start = peek(0, 12)
    if not start:
        raise ValueError("has no audio")
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return None
    position, form = 12, None
    while position < _MAX_HEADER_BYTES:
        header = peek(position, 8)
        if len(header) < 8:
            raise CutHeaderError("has no audio") if form else CutHeaderError()
        name, size = header[:4], struct.unpack("<I", header[4:])[0]
        position += 8
        if name == b"data":
            if form is None:
                break
            pcm = wav_pcm(form, size if 0 < size < UNKNOWN_SIZE_BYTES else None)
            return (pcm, position) if pcm else None
        needed = max(0, min(size, _MAX_HEADER_BYTES - position))
        content = peek(position, needed)
        if len(content) < needed:
            raise CutHeaderError()
        if name == b"fmt ":
            form = content
        position += size + size % 2
    raise ValueError("not a readable audio file: its header has no format")


def _integers(dtype: str) -> Callable[[bytes], npt.NDArray[np.float32]]:
    full_scale = np.float32(-float(np.iinfo(dtype).min))
    return lambda data: np.frombuffer(data, dtype).astype(np.float32) / full_scale


def _floats(dtype: str) -> Callable[[bytes], npt.NDArray[np.float32]]:
    return lambda data: np.frombuffer(data, dtype).astype(np.float32)


def _bytes_from_128(data: bytes) -> npt.NDArray[np.float32]:
    return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128


def _int24(data: bytes) -> npt.NDArray[np.float32]:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)  # the high bytes of 32-bit integers
    return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)


def _mulaw_table() -> npt.NDArray[np.float32]:
    """[256]: G.711 mu-law, table 2a."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0xF) << 3) + 0x84) << (code >> 4 & 7)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _alaw_table() -> npt.NDArray[np.float32]:
    """[256]: G.711 A-law, table 1a."""
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, magnitude = code >> 4 & 7, ((code & 0xF) << 4) + 8
    magnitude = np.where(exponent > 0, (magnitude + 0x100) << np.maximum(exponent - 1, 0), magnitude)
    return (np.where(code & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


def _table(values: npt.NDArray[np.float32]) -> Callable[[bytes], npt.NDArray[np.float32]]:
    return lambda data: values[np.frombuffer(data, np.uint8)]


_S16, _F32 = (2, _integers("<i2")), (4, _floats("<f4"))
_MULAW, _ALAW = (1, _table(_mulaw_table())), (1, _table(_alaw_table()))
_RAW = {"s16le": _S16, "f32le": _F32, "mulaw": _MULAW, "alaw": _ALAW}
_EXTENSIBLE = 0xFFFE
_WAV = {
    (1, 8): (1, _bytes_from_128),
    (1, 16): _S16,
    (1, 24): (3, _int24),
    (1, 32): (4, _integers("<i4")),
    (3, 32): _F32,
    (3, 64): (8, _floats("<f8")),
    (6, 8): _ALAW,
    (7, 8): _MULAW,
}
"""By format tag and bits per sample: bytes per sample, and the function that decodes them."""
