"""The formats of recordings: names of files, FFmpeg's readers, and the first bytes, which decide, never a name."""

import io
from typing import BinaryIO

SUFFIXES = (
    ".3g2", ".3gp", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".asf", ".au", ".avi", ".caf", ".flac",
    ".flv", ".m4a", ".m4b", ".mka", ".mkv", ".mov", ".mp2", ".mp3", ".mp4", ".mpeg", ".mpg", ".mpga", ".oga", ".ogg",
    ".opus", ".rf64", ".snd", ".sph", ".spx", ".ts", ".tta", ".w64", ".wav", ".weba", ".webm", ".wma", ".wv",
)  # fmt: skip
"""Files that are taken from a folder."""
DEMUXERS = (
    "aac", "ac3", "aiff", "amr", "amrnb", "amrwb", "ape", "asf", "au", "avi", "caf", "dsf", "dts", "eac3", "flac",
    "flv", "iff", "ircam", "matroska", "webm", "mov", "mp4", "m4a", "3gp", "3g2", "mj2", "mp3", "mpc", "mpc8", "mpeg",
    "mpegts", "nistsphere", "ogg", "rm", "sox", "tak", "tta", "voc", "w64", "wav", "wv",
)  # fmt: skip
"""FFmpeg's readers that open one file of audio; others, such as playlists, would open further ones."""
HEAD_BYTES = 12
"""Bytes that show a container."""
MPEG_BYTES = 4096
"""Bytes that show MPEG audio, which has no name: some frames in a row, also after other bytes."""
_MAGIC = (
    (0, b"RIFF", "WAV"), (0, b"RIFX", "RIFX"), (0, b"RF64", "RF64"), (0, b"riff", "W64"), (0, b"fLaC", "FLAC"),
    (0, b"OggS", "Ogg"), (0, b"FORM", "AIFF"), (0, b".snd", "AU"), (0, b"caff", "CAF"),
    (0, b"\x1aE\xdf\xa3", "WebM or Matroska"), (4, b"ftyp", "MP4"), (4, b"moov", "MP4"), (4, b"mdat", "MP4"),
    (4, b"wide", "MP4"), (0, b"#!AMR", "AMR"), (0, b"NIST_1A", "SPHERE"), (0, b"FLV\x01", "FLV"),
    (0, b"\x30\x26\xb2\x75\x8e\x66", "WMA"), (0, b"\x00\x00\x01\xba", "MPEG"), (0, b"MAC ", "Monkey's Audio"),
    (0, b"wvpk", "WavPack"), (0, b"TTA1", "TTA"), (0, b"DSD ", "DSD"), (0, b".RMF", "RealMedia"), (0, b".SoX", "SoX"),
    (0, b"Creative Voi", "VOC"), (0, b"PVF1", "PVF"), (0, b"\x7f\xfe\x80\x01", "DTS"),
)  # fmt: skip
_TS_PACKET_BYTES = 188
_AC3 = b"\x0b\x77"
_CHAIN_FRAMES = 3
"""Frames of MPEG audio in a row that raw samples have by no chance."""
_KBIT = {
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates of a frame's index 1 .. 14 by the bits of version (2.5 as 2) and layer (2, 3): ISO 11172-3, 13818-3."""
_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""By the version bits of a frame."""


def container_name(head: bytes) -> str | None:
    """The format of a recording that begins with its name, by its first `HEAD_BYTES`; None for others."""
    if head.startswith(b"ID3") and len(head) >= 10 and max(head[3:5]) < 0xFF and max(head[6:10]) < 0x80:
        return "MP3"
    return next((name for position, magic, name in _MAGIC if head[position:].startswith(magic)), None)


def is_container(head: bytes) -> bool:
    """True for the first `HEAD_BYTES` of a recording whose format begins with a name."""
    return container_name(head) is not None


def is_stream(head: bytes) -> bool:
    """True for `MPEG_BYTES` with frames of MPEG audio, AAC or AC-3 in a row, or packets of a transport stream."""
    if head[:1] == b"\x47" and set(head[::_TS_PACKET_BYTES]) == {0x47} and len(head) > 4 * _TS_PACKET_BYTES:
        return True
    if head[:2] == _AC3 and head.count(_AC3) >= _CHAIN_FRAMES:
        return True
    return mpeg_begin(head) is not None


def begins_stream(head: bytes) -> bool | None:
    """True for the first bytes of MPEG audio, AAC or a transport stream, False for others; None if more are needed."""
    if set(head[::_TS_PACKET_BYTES]) == {0x47}:
        return True if len(head) > 4 * _TS_PACKET_BYTES else None
    return _is_chain(head, 0)


def is_text(data: bytes) -> bool:
    """True for printable ASCII and white space alone, which no audio is."""
    return bool(data) and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def no_audio(head: bytes) -> str:
    """Describes the first bytes of an unreadable file, for its error."""
    if is_text(head[:64]):
        return f"it is a text, which begins with {head[:32].decode()!r}"
    return f"it begins with the bytes {head[:8].hex(' ')}"


def mpeg_begin(data: bytes) -> int | None:
    """Finds where frames of MPEG audio or AAC in a row begin; None where there are none."""
    begin = data.find(b"\xff")
    while begin >= 0 and not _is_chain(data, begin):
        begin = data.find(b"\xff", begin + 1)
    return begin if begin >= 0 else None


def is_mp3_tag(frame: bytes) -> bool:
    """True for the first bytes of an MP3 frame, or of what is taken for one, that has facts in place of audio."""
    return frame.startswith((b"ID3", b"TAG", b"APETAG")) or any(tag in frame for tag in (b"Xing", b"Info", b"VBRI"))


def mp3_seconds(data: bytes) -> float | None:
    """The duration that the tag in the first frame of an MP3 states; None without a tag. data: the first bytes."""
    if data.startswith(b"ID3") and len(data) > 10:  # its size has 7 bits per byte
        data = data[10 + sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True)) :]
    begin = mpeg_begin(data)
    frame = b"" if begin is None else data[begin : begin + 64]
    for tag, offset in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        place = frame.find(tag)
        if place >= 0 and (tag == b"VBRI" or frame[place + 7] & 1):
            version = frame[1] >> 3 & 3
            frames = int.from_bytes(frame[place + offset : place + offset + 4], "big")
            return frames * (1152 if version == 3 else 576) / _RATES_HZ[version][frame[2] >> 2 & 3]
    return None


def _is_chain(data: bytes, begin: int) -> bool | None:
    """True for frames in a row; None where the bytes end before the last one's header."""
    first = _fixed(data[begin : begin + 4])
    for _ in range(_CHAIN_FRAMES):
        if len(data) < begin + 6:
            return None
        size = _frame_bytes(data[begin : begin + 6])
        if not size or _fixed(data[begin : begin + 4]) != first:
            return False
        begin += size
    return True


def _is_adts(header: bytes) -> bool:
    """True for AAC in ADTS (ISO 13818-7)."""
    return header[1:2] != b"" and header[1] & 0xF6 == 0xF0


def _fixed(header: bytes) -> bytes:
    """Fields that all frames of a stream have in common: version, layer, rate, and more of AAC."""
    if len(header) < 4:
        return b""
    return bytes((header[1], *((header[2], header[3] & 0xF0) if _is_adts(header) else (header[2] & 0x0C,))))


def _frame_bytes(header: bytes) -> int:
    """Size of the frame that begins here; 0 for none."""
    if len(header) < 6 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    if _is_adts(header):
        size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
        return size if size > 7 and header[2] >> 2 & 15 < 13 else 0
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    bit_rate, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer in (0, 3) or bit_rate in (0, 15) or rate == 3:
        return 0
    kbit, rate_hz = _KBIT[3 if version == 3 else 2, layer][bit_rate - 1], _RATES_HZ[version][rate]
    return (72_000 if layer == 1 and version != 3 else 144_000) * kbit // rate_hz + padding


_PAGE_HEAD_BYTES = 27
_MAX_PAGE_BYTES = 65_307
_END = 4
"""The flag of a stream's last page (RFC 3533, section 6)."""


def ogg_end(file: BinaryIO) -> int | None:
    """The position in samples in the last page of an Ogg file, -1 for none; None where that page is cut or not last."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - _MAX_PAGE_BYTES))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    head, segments = page[:_PAGE_HEAD_BYTES], page[_PAGE_HEAD_BYTES:]
    if len(head) < _PAGE_HEAD_BYTES or not head[5] & _END:
        return None
    if len(page) < _PAGE_HEAD_BYTES + head[26] + sum(segments[: head[26]]):  # the table of the sizes of its segments
        return None
    return int.from_bytes(page[6:14], "little", signed=True)
