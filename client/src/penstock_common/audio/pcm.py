"""Samples without compression, as in raw audio and WAV files, the header of a WAV stream, and remarks on the audio."""

import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

CUT, DAMAGED, GAP, UNREAD, CANCELLED = "cut", "damaged", "gap", "unread", "cancelled"
"""Codes: the file ends before its end; parts could not be decoded; its times have a hole; bytes at the end were not
read; the channels cancel in the mix."""
MISREAD, WORDLESS, REPEATED = "misread", "wordless", "repeated"
"""Codes: samples are noise, with `_` and the encoding in which they are smoother; loud audio has no words; a loop."""
MIN_LOST_S = 0.05
"""Programs write lengths that are off by a header or by a frame of their encoding."""
_MAX_REMARKS = 10
_TEXTS = {
    CUT: "is cut: ends at {start_s:.2f} s{lost}",
    DAMAGED: "is damaged at {start_s:.2f} s{lost}",
    GAP: "has no audio at {start_s:.2f} s for {lost_s:.2f} s",
    UNREAD: "has more data after {start_s:.2f} s, which is not read",
    CANCELLED: "its channels cancel in the mix (opposite phase): choose one, or each",
    MISREAD: "is noise as it is declared{other}: is its encoding right?",
    WORDLESS: "is loud at {start_s:.2f} s for {lost_s:.2f} s without a word",
    REPEATED: "repeats itself at {start_s:.2f} s: the same words more than ten times in a row",
}


class Remark(NamedTuple):
    """One remark; `code` is stable."""

    code: str
    start_s: float
    """Position in the file."""
    lost_s: float
    """Seconds of audio that are missing, silence in their place; 0 where that is not known. Those without words."""

    @property
    def text(self) -> str:
        """For a user, without the file's name."""
        code, _, encoding = self.code.partition("_")
        other = f", and smoother as {encoding}" if encoding else ""
        lost = f", {self.lost_s:.2f} s are missing" if self.lost_s else ""
        return _TEXTS[code].format(start_s=self.start_s, lost_s=self.lost_s, lost=lost, other=other)

    @property
    def document(self) -> dict[str, object]:
        """For JSON."""
        numbers = {"start_s": round(self.start_s, 3), "lost_s": round(self.lost_s, 3)}
        return {"code": self.code, **numbers, "message": self.text}


def header(remarks: Iterable[Remark]) -> str:
    """Remarks as the value of a header: `cut; start=4.35; lost=4.35, gap; ...`."""
    return ", ".join(f"{each.code}; start={each.start_s:.2f}; lost={each.lost_s:.2f}" for each in remarks)


class Remarks(list[Remark]):
    """The remarks of one file, in order; neighbours of one code are one remark, and there are at most ten."""

    def note(self, code: str, start_s: float, lost_s: float = 0.0) -> None:
        """Adds a remark, or adds its seconds to that before."""
        last = self[-1] if self else None
        is_full = len(self) >= _MAX_REMARKS
        if last is not None and last.code == code and (start_s - last.start_s - last.lost_s < 1.0 or is_full):
            self[-1] = last._replace(lost_s=last.lost_s + lost_s)
        elif not is_full:
            self.append(Remark(code, start_s, lost_s))


RawEncoding = Literal["s16le", "f32le", "mulaw", "alaw"]
"""16-bit integers, 32-bit floats, and the two encodings of telephony (ITU-T G.711) with 8 bits."""

_MAX_HEADER_BYTES = 1 << 20
_MAX_CHUNK_BYTES = 1 << 24
_UNKNOWN_BYTES = 0x7FFF0000
"""Programs that write to a pipe state at least this size, because they do not know it yet."""
MIN_RATE_HZ, _MAX_RATE_HZ = 1000, 768_000
MAX_CHANNELS = 64


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
            ("number of channels", self.channels, MAX_CHANNELS),
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

    @property
    def text(self) -> str:
        """Encoding, rate and channels, for messages."""
        raw = (name for name, form in _RAW.items() if form == (self.sample_bytes, self.decode))
        encoding = next(raw, f"{8 * self.sample_bytes} bits")
        return f"{encoding} at {self.sample_rate_hz} Hz with {self.channels} channel{'s' * (self.channels > 1)}"


def raw_pcm(raw: RawFormat) -> PcmFormat:
    """The format of raw audio."""
    return PcmFormat(*_RAW[raw.encoding], raw.sample_rate_hz, raw.channels)


def wav_pcm(chunk: bytes, data_bytes: int | None) -> PcmFormat | None:
    """The format that a WAV file's `fmt ` chunk states; None for a compressed one. Raises ValueError for a broken one.

    Source: Microsoft's WAVEFORMATEX and WAVEFORMATEXTENSIBLE.
    """
    if len(chunk) < 16:
        raise ValueError("not a readable audio file: its header is cut")
    tag, channels, rate_hz, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if (tag, bits) not in _WAV:
        return None
    check_form(channels, rate_hz)
    pcm = PcmFormat(*_WAV[tag, bits], rate_hz, channels, data_bytes)
    return pcm if frame_bytes == pcm.frame_bytes else None  # such as 24 bits in 32


def check_form(channels: int, rate_hz: int) -> None:
    """Raises ValueError for what no recording has: a broken header may state 1 Hz, or thousands of channels."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError(f"has {channels} channels; accepted: 1 to {MAX_CHANNELS}")
    if not MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ:
        raise ValueError(f"has a sample rate of {rate_hz} Hz; accepted: {MIN_RATE_HZ} to {_MAX_RATE_HZ}")


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
            pcm = wav_pcm(form, size if size < _UNKNOWN_BYTES else None)
            return (pcm, position) if pcm else None
        needed = max(0, min(size, _MAX_HEADER_BYTES - position))
        content = peek(position, needed)
        if len(content) < needed:
            raise CutHeaderError()
        if name == b"fmt ":
            form = content
        position += size + size % 2
    raise ValueError("not a readable audio file: its header has no format")


class Block(NamedTuple):
    """Samples of a recording, whose rate and channels may change."""

    rate_hz: int
    samples: npt.NDArray[np.float32]
    """[n, channels], full scale 1."""


class PcmStream:
    """The samples of raw audio, or of a WAV file, from its bytes in parts of any size.

    The length in a WAV header ends the audio only where another chunk follows: recorders that are killed leave a
    wrong one, such as 0. A second file behind the first one is read, too. Raises ValueError for a broken header.
    """

    def __init__(self, raw: RawFormat | None = None):
        """raw: the format of audio without a header."""
        self.format = None if raw is None else raw_pcm(raw)
        """Known after the header."""
        self.remarks = Remarks()
        self._pending = b""
        self._left: int | None = None
        """Bytes up to the stated end of the audio."""
        self._skip = 0
        """Bytes of a chunk that is no audio."""
        self._audio_s = 0.0

    def push(self, data: bytes, is_end: bool = False) -> list[Block]:
        """Takes the next bytes; returns the samples that are complete."""
        self._pending += data
        blocks: list[Block] = []
        while self._pending:
            before, state = len(self._pending), (self._left, self._skip, self.format)
            if self.format is None:
                self._read_header(is_end)
            elif self._skip or (self._left is not None and self._left < self.format.frame_bytes):
                self._pass_chunk(is_end)
            else:
                self._take_samples(blocks)
            if len(self._pending) == before and state == (self._left, self._skip, self.format):
                break
        if is_end:
            self._end()
        return blocks

    def _read_header(self, is_end: bool) -> None:
        data = self._pending
        try:
            header = read_wav_header(lambda start, size: data[start : start + size])
            if header is None and (is_end or len(data) >= 12):
                raise ValueError("not a WAV file of samples without compression")
        except ValueError as error:
            if isinstance(error, CutHeaderError) and not is_end and len(data) < _MAX_HEADER_BYTES:
                return
            if not self._audio_s:
                raise
            self.remarks.note(DAMAGED, self._audio_s)  # of a second file
            self._pending = b""
            return
        if header is not None:
            self.format, header_bytes = header
            self._left, self._pending = self.format.data_bytes, data[header_bytes:]

    def _pass_chunk(self, is_end: bool) -> None:
        """Behind the stated end: other chunks, another file, or more audio."""
        if self._skip:
            skipped = min(self._skip, len(self._pending))
            self._skip, self._pending = self._skip - skipped, self._pending[skipped:]
            return
        assert self.format is not None and self._left is not None
        end, pad = self._left, (self.format.data_bytes or 0) % 2  # the stated length may be no whole number of samples
        if len(self._pending) < end + 9 and not is_end:
            return
        for begin in (end, end + pad):
            name, size = self._pending[begin : begin + 4], self._pending[begin + 4 : begin + 8]
            if len(size) < 4 or name.startswith((b"TAG", b"ID3", b"APET")):
                self._skip = sys.maxsize  # a tag, or too little to be anything
            elif name == b"RIFF":
                self.format, self._pending = None, self._pending[begin:]
                return
            elif _is_name(name) and (count := struct.unpack("<I", size)[0]) < _MAX_CHUNK_BYTES:
                self._skip = begin + 8 + count + count % 2
            if self._skip:
                self._left = 0
                return
        self._left = None  # the stated end was wrong

    def _take_samples(self, blocks: list[Block]) -> None:
        assert self.format is not None
        limit = len(self._pending) if self._left is None else min(self._left, len(self._pending))
        size = limit // self.format.frame_bytes * self.format.frame_bytes
        if size:
            samples = self.format.decode(self._pending[:size]).reshape(-1, self.format.channels)
            blocks.append(Block(self.format.sample_rate_hz, samples))
            self._audio_s += len(samples) / self.format.sample_rate_hz
        self._pending = self._pending[size:]
        if self._left is not None:
            self._left -= size

    def _end(self) -> None:
        if self.format is None and not self._pending and not self._audio_s:
            raise ValueError("has no audio")
        if self._left and self.format is not None:
            lost_s = self._left / self.format.frame_bytes / self.format.sample_rate_hz
            if lost_s >= MIN_LOST_S:
                self.remarks.note(CUT, self._audio_s, lost_s)


def _is_name(name: bytes) -> bool:
    return all(byte == 32 or chr(byte).isalnum() or byte == 95 for byte in name) and name.isascii()


def _integers(dtype: str) -> Callable[[bytes], npt.NDArray[np.float32]]:
    full_scale = np.float32(-float(np.iinfo(dtype).min))
    return lambda data: np.frombuffer(data, dtype).astype(np.float32) / full_scale


def _floats(dtype: str) -> Callable[[bytes], npt.NDArray[np.float32]]:
    def decode(data: bytes) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):  # what becomes infinite is rejected as not finite
            return np.frombuffer(data, dtype).astype(np.float32)

    return decode


def _bytes_from_128(data: bytes) -> npt.NDArray[np.float32]:
    return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)


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
ENCODINGS = {**_RAW, "s16be": (2, _integers(">i2"))}
"""By name: bytes per sample, and the function that decodes them."""
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
