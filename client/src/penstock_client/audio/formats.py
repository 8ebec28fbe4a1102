"""The formats of recordings: names of files, FFmpeg's readers, and the first bytes, which decide, never a name."""

ACCEPTED = "WAV; with FFmpeg (the extra `media`) MP3, AAC, m4a, MP4, Ogg, Opus, WebM, FLAC and other formats"
SUFFIXES = (
    ".3g2", ".3gp", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".asf", ".au", ".avi", ".caf", ".flac",
    ".flv", ".m4a", ".m4b", ".mka", ".mkv", ".mov", ".mp2", ".mp3", ".mp4", ".mpeg", ".mpg", ".mpga", ".oga", ".ogg",
    ".opus", ".rf64", ".snd", ".sph", ".spx", ".ts", ".tta", ".w64", ".wav", ".weba", ".webm", ".wma", ".wv",
)  # fmt: skip
"""Files that are taken from a folder."""
DEMUXERS = (
    "aac", "ac3", "aiff", "amr", "amrnb", "amrwb", "ape", "asf", "au", "avi", "caf", "dsf", "eac3", "flac", "flv",
    "iff", "ircam", "matroska", "webm", "mov", "mp4", "m4a", "3gp", "3g2", "mj2", "mp3", "mpc", "mpc8", "mpeg",
    "mpegts", "nistsphere", "ogg", "rm", "sox", "tak", "tta", "voc", "w64", "wav", "wv",
)  # fmt: skip
"""FFmpeg's readers that open one file of audio; others, such as playlists, would open further ones."""
HEAD_BYTES = 12
"""Bytes that show a container."""
MPEG_BYTES = 4096
"""Bytes that show MPEG audio, which has no name: some frames in a row, also after other bytes."""
_MAGIC = (
    (0, b"RIFF"), (0, b"RF64"), (0, b"riff"), (0, b"fLaC"), (0, b"OggS"), (0, b"ID3"), (0, b"FORM"), (0, b".snd"),
    (0, b"caff"), (0, b"\x1aE\xdf\xa3"), (4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"#!AMR"),
    (0, b"NIST_1A"), (0, b"FLV\x01"), (0, b"\x30\x26\xb2\x75\x8e\x66"), (0, b"\x00\x00\x01\xba"), (0, b"MAC "),
    (0, b"wvpk"), (0, b"TTA1"), (0, b"DSD "), (0, b".RMF"), (0, b".SoX"), (0, b"Creative Voi"),
)  # fmt: skip
_TS_PACKET_BYTES = 188
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


def is_container(head: bytes) -> bool:
    """True for the first `HEAD_BYTES` of a recording whose format begins with a name."""
    return any(head[position:].startswith(magic) for position, magic in _MAGIC)


def is_stream(head: bytes) -> bool:
    """True for `MPEG_BYTES` with frames of MPEG audio or AAC in a row, or with packets of a transport stream."""
    if head[:1] == b"\x47" and set(head[::_TS_PACKET_BYTES]) == {0x47} and len(head) > 4 * _TS_PACKET_BYTES:
        return True
    begin = head.find(b"\xff")
    while begin >= 0:
        if _is_chain(head, begin):
            return True
        begin = head.find(b"\xff", begin + 1)
    return False


def is_text(data: bytes) -> bool:
    """True for printable ASCII and white space alone, which no audio is."""
    return bool(data) and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def has_stated_frames(head: bytes) -> bool:
    """True for MP3 whose first frame states the number of frames: without it, a duration is a guess."""
    return any(tag in head for tag in (b"Xing", b"Info", b"VBRI"))


def _is_chain(data: bytes, begin: int) -> bool:
    first = _fixed(data[begin : begin + 4])
    for _ in range(_CHAIN_FRAMES):
        size = _frame_bytes(data[begin : begin + 6])
        if not size or _fixed(data[begin : begin + 4]) != first:
            return False
        begin += size
    return True


def _is_adts(header: bytes) -> bool:
    """True for AAC in ADTS (ISO 13818-7)."""
    return header[1:2] != b"" and header[1] & 0xF6 == 0xF0


def _fixed(header: bytes) -> bytes:
    """What all frames of a stream have in common: version, layer, rate, and more of AAC."""
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
