"""The format of a recording by its first bytes, never by its name, and which library reads it."""

SOUNDFILE, MEDIA = "soundfile", "media"
"""libsndfile, and FFmpeg of the extra `media`."""
ACCEPTED = "wav, flac, ogg, opus, mp3, aiff, au, caf; with the extra `media` also webm, m4a, mp4, aac, amr"
HEAD_BYTES = 12
"""Bytes that decide, but for MPEG audio without a tag: see `is_mpeg_audio`."""
MPEG_BYTES = 2048
"""Bytes that decide whether audio is MPEG audio."""
SOUNDFILE_SUFFIXES = (
    ".aif", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".rf64", ".snd", ".sph", ".w64", ".wav",
)  # fmt: skip
MEDIA_SUFFIXES = (".aac", ".amr", ".m4a", ".mka", ".mkv", ".mov", ".mp4", ".webm")
"""Names of files that FFmpeg reads."""
_MAGIC = (
    (0, b"RIFF", SOUNDFILE), (0, b"fLaC", SOUNDFILE), (0, b"OggS", SOUNDFILE), (0, b"ID3", SOUNDFILE),
    (0, b"FORM", SOUNDFILE), (0, b".snd", SOUNDFILE), (0, b"caff", SOUNDFILE), (0, b"\x1aE\xdf\xa3", MEDIA),
    (4, b"ftyp", MEDIA), (0, b"#!AMR", MEDIA),
)  # fmt: skip
_LAYER_3_KBIT = {
    1: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates of a frame's index 1 .. 14, in MPEG 1 and in MPEG 2 and 2.5 (ISO 11172-3 and 13818-3)."""
_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""By the version bits of a frame."""


def decoder_of(head: bytes) -> str | None:
    """The decoder of a recording that begins with these bytes; None for an unknown format."""
    if (known := decoder_of_container(head)) is not None:
        return known
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # a frame of MPEG audio; AAC has no layer
        return SOUNDFILE if head[1] & 0x06 else MEDIA
    return None


def decoder_of_container(head: bytes) -> str | None:
    """The same for formats with a name in their first `HEAD_BYTES`, which raw samples have by no chance."""
    return next((decoder for position, magic, decoder in _MAGIC if head[position:].startswith(magic)), None)


def is_mpeg_audio(head: bytes) -> bool:
    """True if these `MPEG_BYTES` begin with two frames of MPEG layer 3, or of AAC, of one form.

    One frame alone proves nothing: raw samples near 0 begin with the same bits.
    """
    size = _frame_bytes(head)
    return bool(size) and _frame_bytes(head[size:]) > 0 and head[1] == head[size + 1]


def is_text(data: bytes) -> bool:
    """True for printable ASCII and white space alone, which no audio is."""
    return bool(data) and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def _frame_bytes(header: bytes) -> int:
    """Size of the frame that begins here; 0 for none."""
    if len(header) < 6 or header[0] != 0xFF:
        return 0
    if header[1] & 0xF6 == 0xF0:  # AAC in ADTS (ISO 13818-7)
        return (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    if header[1] & 0xE6 != 0xE2:  # sync, layer 3
        return 0
    version, bit_rate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bit_rate in (0, 15) or rate == 3:
        return 0
    is_mpeg_1 = version == 3
    kbit = _LAYER_3_KBIT[1 if is_mpeg_1 else 2][bit_rate - 1]
    return (144_000 if is_mpeg_1 else 72_000) * kbit // _RATES_HZ[version][rate] + (header[2] >> 1 & 1)
