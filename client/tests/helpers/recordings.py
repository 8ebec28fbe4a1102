"""Recordings as programs write them, and as they arrive: cut, damaged, joined, with wrong lengths; made of one talk.

`RECORDINGS` is the table. What Debian's ffmpeg, lame, opusenc, flac and sox do not make here, Python makes of their
files.
"""

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

RATE_HZ = 16_000
_FFMPEG = "ffmpeg -v error -y -i {talk}"
_VIDEO = (
    "ffmpeg -v error -y -f lavfi -i color=c=red:s=32x32:r=5:d=8 -itsoffset 5 -i {talk} -map 0:v -map 1:a -c:v mpeg4"
)


class Recording(NamedTuple):
    """One row of the table."""

    name: str
    make: str | Callable[[dict[str, bytes], bytes], bytes]
    """A command with {talk}, a WAV file at 16 kHz, and {out}; or a function of the files so far and the WAV file."""
    remarks: Sequence[str] = ()
    """Codes of its remarks; where it is damaged, the rest may be cut, too."""
    start_s: float = 0.0
    talks: float | None = None
    """Times that the talk is in it; None: as much as FFmpeg decodes."""

    @property
    def tools(self) -> set[str]:
        """Programs that make it."""
        text = self.make if isinstance(self.make, str) else ""
        return {tool for tool in ("ffmpeg", "lame", "opusenc", "flac", "sox") if f"{tool} " in text}


def encoded(name: str, options: str = "") -> Recording:
    """A file of FFmpeg's command with the whole talk."""
    return Recording(name, f"{_FFMPEG} {options} {{out}}", talks=1)


def of(name: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes], bytes], bytes]:
    """A change of an earlier file."""
    return lambda files, _: change(files[name])


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damaged(data: bytes) -> bytes:
    """With 200 random bytes in the middle."""
    middle = len(data) // 2
    return data[:middle] + random.Random(7).randbytes(200) + data[middle + 200 :]


def wav_of(size: float | int, riff: int | None = None) -> Callable[[dict[str, bytes], bytes], bytes]:
    """The talk with another length in its header: bytes more or less, or a factor of the true one."""

    def make(_: dict[str, bytes], talk: bytes) -> bytes:
        stated = round(size * (len(talk) - 44)) if isinstance(size, float) else size
        riff_size = stated + 36 if riff is None else riff
        return b"".join(
            (talk[:4], struct.pack("<I", riff_size % 2**32), talk[8:40], struct.pack("<I", stated % 2**32), talk[44:])
        )

    return make


def float24(_: dict[str, bytes], talk: bytes) -> bytes:
    """The talk as WAV of 24 bits in 32: floats of full scale 2^23, as Cool Edit wrote them."""
    samples = np.frombuffer(talk[44:], "<i2").astype("<f4") * 256
    form = struct.pack("<HHIIHH", 1, 1, RATE_HZ, 4 * RATE_HZ, 4, 24)
    data = samples.tobytes()
    head = b"RIFF" + struct.pack("<I", len(data) + 36) + b"WAVEfmt \x10\0\0\0" + form
    return head + b"data" + struct.pack("<I", len(data)) + data


def fewer_samples(data: bytes) -> bytes:
    """A FLAC file whose STREAMINFO states a third of its samples."""
    stated = int.from_bytes(data[21:26], "big")
    count = (stated & (1 << 36) - 1) // 3
    return data[:21] + (stated >> 36 << 36 | count).to_bytes(5, "big") + data[26:]


def unknown_samples(data: bytes) -> bytes:
    return data[:21] + bytes([data[21] & 0xF0]) + bytes(4) + data[26:]


_LIST = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf59.27.100\0"
_ID3 = b"ID3\4\0\0\0\0\0\x0a" + bytes(10)
_LATE = 4.9
"""AAC begins 64 ms before the time that was asked for."""

RECORDINGS = (
    # WAV, and what is wrong with its lengths
    encoded("plain.wav"), encoded("u8.wav", "-c:a pcm_u8"), encoded("s24.wav", "-c:a pcm_s24le"),
    encoded("f64.wav", "-c:a pcm_f64le"), encoded("mulaw.wav", "-ar 8000 -c:a pcm_mulaw"),
    encoded("alaw.wav", "-ar 8000 -c:a pcm_alaw"), encoded("surround.wav", "-ac 6 -ar 48000"),
    Recording("size-2.wav", wav_of(2**31 + 2), talks=1), Recording("size+2.wav", wav_of(1.001), talks=1),
    Recording("double.wav", wav_of(2.0), ["cut"], talks=1), Recording("small.wav", wav_of(0.3), talks=1),
    Recording("zero.wav", wav_of(0, 0), talks=1), Recording("unknown.wav", wav_of(-1, -1), talks=1),
    Recording("half.wav", lambda _, talk: half(talk), ["cut"], talks=0.5),
    Recording("list.wav", lambda _, talk: talk + _LIST, talks=1),
    Recording("zero-list.wav", lambda _, talk: wav_of(0, 0)({}, talk) + _LIST, talks=1),
    Recording("id3v1.wav", lambda _, talk: talk + b"TAG" + bytes(125), talks=1),
    Recording("joined.wav", lambda _, talk: talk + talk, talks=2), Recording("float24.wav", float24),
    # WAV with compression
    encoded("mp3.wav", "-ar 44100 -c:a libmp3lame -b:a 64k"), encoded("g722.wav", "-c:a g722"),
    encoded("g726.wav", "-ar 8000 -c:a g726 -b:a 32k"), encoded("adpcm.wav", "-c:a adpcm_ms"),
    encoded("ima.wav", "-c:a adpcm_ima_wav"),
    Recording("gsm.wav", "sox {talk} -r 8000 -e gsm-full-rate {out}"),
    # MP3: without a tag FFmpeg and libsndfile only guess its length
    encoded("cbr.mp3", "-b:a 64k"), encoded("vbr.mp3", "-ar 44100 -q:a 6 -write_xing 0 -id3v2_version 0"),
    Recording("pipe.mp3", f"{_FFMPEG} -q:a 6 -f mp3 - > {{out}}"),
    encoded("tagged.mp3", "-ar 44100 -q:a 6 -write_xing 0 -id3v2_version 3 -metadata title=talk"),
    Recording("abr.mp3", "lame --quiet --abr 64 {talk} {out}"),
    Recording("lame.mp3", "lame --quiet -V6 {talk} - > {out}"),
    Recording("joined.mp3", of("cbr.mp3", lambda data: data + data)),
    Recording("joined-vbr.mp3", of("vbr.mp3", lambda data: data + data)),
    Recording("torn.mp3", of("cbr.mp3", lambda data: data[:-150])),
    Recording("half.mp3", of("cbr.mp3", half), ["cut"]),
    Recording("junk.mp3", of("vbr.mp3", lambda data: random.Random(1).randbytes(3000) + data)),
    Recording("damaged.mp3", of("cbr.mp3", damaged), ["damaged"]),
    encoded("layer2.mp2", "-c:a mp2"),
    encoded("info.mp3", "-ar 44100 -q:a 6 -write_xing 0 -id3v2_version 3 -metadata title='Info about'"),
    Recording("two-vbr.mp3", f"{_FFMPEG} -ar 44100 -q:a 2 -f mp3 {{out}}.a; {_FFMPEG} -ar 44100"
        " -q:a 9 -f mp3 {out}.b; cat {out}.a {out}.b > {out}"),
    Recording("cover.mp3", f"ffmpeg -v error -y -f lavfi -i color=s=4000x4000 -frames:v 1 -pix_fmt monob {{out}}.png;"
        f" {_FFMPEG} -i {{out}}.png -map 0 -map 1 -c:v copy -b:a 64k -id3v2_version 3 {{out}}"),
    # AAC and its containers
    encoded("adts.aac", "-c:a aac"), Recording("id3.aac", of("adts.aac", lambda data: _ID3 + data)),
    Recording("half.aac", of("adts.aac", half), ["cut"]),
    Recording("damaged.aac", of("adts.aac", damaged), ["damaged"]),
    Recording("joined.aac", of("adts.aac", lambda data: data + data)),
    encoded("eight.m4a", "-ac 8 -ar 48000 -c:a aac"), encoded("a.m4a", "-c:a aac"),
    encoded("stereo.m4b", "-ac 2 -ar 44100 -c:a aac -f ipod"),
    encoded("alac.m4a", "-c:a alac"), encoded("a.3gp", "-c:a aac"), encoded("a.mov", "-c:a pcm_s16le"),
    encoded("fast.mov", "-c:a pcm_s16le -movflags faststart"),
    Recording("half.mov", of("fast.mov", half), ["cut"]),
    encoded("fast.m4a", "-c:a aac -movflags faststart"), Recording("half.m4a", of("fast.m4a", half), ["cut"]),
    Recording("damaged.m4a", of("a.m4a", damaged), ["damaged"]),
    Recording("joined.m4a", of("a.m4a", lambda data: data + data), ["unread"]),
    encoded("fragmented.mp4", "-c:a aac -movflags frag_keyframe+empty_moov+default_base_moof -frag_duration 500000"),
    Recording("half.mp4", of("fragmented.mp4", half), ["cut"]),
    Recording("damaged.mp4", of("fragmented.mp4", damaged), ["damaged"]),
    # Ogg, WebM, Matroska
    Recording("a.opus", "opusenc --quiet {talk} {out}"),
    encoded("ff.opus", "-c:a libopus"),
    Recording("joined.opus", of("a.opus", lambda data: data + data), talks=2),
    Recording("half.opus", of("a.opus", half), ["cut"]),
    Recording("damaged.opus", of("a.opus", damaged), ["damaged"], talks=1),
    encoded("vorbis.ogg", "-c:a libvorbis"),
    Recording("joined.ogg", of("vorbis.ogg", lambda data: data + data), talks=2),
    Recording("changing.ogg", f"({_FFMPEG} -ar 48000 -f ogg -c:a libvorbis -;"
        f" {_FFMPEG} -ac 2 -f ogg -c:a libvorbis -)" " > {out}", ["damaged", "cut"], talks=1),
    Recording("changing.opus", f"({_FFMPEG} -f ogg -c:a libopus -; {_FFMPEG} -ac 2 -f ogg -c:a libopus -)" " > {out}",
        ["cut"], talks=1),
    encoded("offset.opus", "-c:a libopus -output_ts_offset 3600"),
    Recording("half.ogg", of("vorbis.ogg", half), ["cut"]), encoded("speex.ogg", "-c:a libspeex"),
    encoded("flac.ogg", "-c:a flac"), encoded("a.webm", "-c:a libopus"), encoded("vorbis.webm", "-c:a libvorbis"),
    Recording("live.webm", f"{_FFMPEG} -c:a libopus -f webm -live 1 - > {{out}}"),
    Recording("half.webm", of("a.webm", half), ["cut"]), Recording("half-live.webm", of("live.webm", half), ["cut"]),
    Recording("damaged.webm", of("a.webm", damaged), ["damaged"]),
    Recording("joined.webm", of("a.webm", lambda data: data + data)),
    Recording(
        "hole.webm", _FFMPEG + " -af \"asetpts='if(lt(T,2),PTS,PTS+4/TB)'\" -c:a libopus {out}", ["gap"], talks=1,
    ),
    encoded("flac.mkv", "-c:a flac"), encoded("pcm.mkv", "-c:a pcm_s16le"), encoded("a.mka", "-c:a aac"),
    Recording("half.mkv", of("flac.mkv", half), ["cut"]),
    Recording("tracks.mkv", "ffmpeg -v error -y -f lavfi -i sine=d=2 -i {talk} -map 0:a -map 1:a -c:a libopus"
        " -disposition:a:0 0 -disposition:a:1 default {out}"),
    # FLAC
    encoded("a.flac"), Recording("pipe.flac", "flac --silent --no-seektable -c - < {talk} > {out}", talks=1),
    Recording("few.flac", of("a.flac", fewer_samples), talks=1),
    Recording("unknown.flac", of("a.flac", unknown_samples), talks=1),
    Recording("id3v1.flac", of("a.flac", lambda data: data + b"TAG" + bytes(125)), talks=1),
    Recording("id3v2.flac", of("a.flac", lambda data: _ID3 + data), talks=1),
    Recording("zeros.flac", of("a.flac", lambda data: data + bytes(5000)), talks=1),
    Recording("half.flac", of("a.flac", half), ["cut"]),
    Recording("joined.flac", of("a.flac", lambda data: data + data), talks=2),
    Recording("damaged.flac", of("a.flac", damaged), ["damaged"]),
    # AIFF, AU, CAF and others
    encoded("a.aiff"), Recording("a.aifc", "sox {talk} -t aifc {out}", talks=1),
    Recording("half.aiff", of("a.aiff", half), ["cut"]), encoded("a.au"),
    Recording("zero.au", of("a.au", lambda data: data[:8] + bytes(4) + data[12:]), talks=1),
    Recording("unknown.au", of("a.au", lambda data: data[:8] + b"\xff" * 4 + data[12:]), talks=1),
    Recording("mulaw.au", "sox {talk} -r 8000 -e mu-law {out}"), encoded("a.caf"),
    Recording("pipe.caf", f"{_FFMPEG} -f caf - > {{out}}", talks=1), encoded("alac.caf", "-c:a alac"),
    encoded("opus.caf", "-c:a libopus"), encoded("a.rf64", "-rf64 always -f wav"),
    Recording("half.rf64", of("a.rf64", half), ["cut"]), encoded("a.w64"),
    Recording("a.sph", "sox {talk} {out}", talks=1), Recording("a.sox", "sox {talk} {out}", talks=1),
    Recording("a.amr", "sox {talk} -r 8000 -t amr-nb -C 7 {out}", talks=1), encoded("a.ac3", "-ar 48000 -c:a ac3"),
    encoded("a.wma", "-c:a wmav2"), encoded("a.avi", "-c:a libmp3lame"), encoded("a.flv", "-ar 44100 -c:a aac"),
    encoded("a.ts", "-c:a aac"), Recording("half.ts", of("a.ts", half), ["cut"]), encoded("a.mpg", "-c:a mp2 -f mpeg"),
    encoded("six.tta", "-ac 6 -ar 96000 -c:a tta"),
    encoded("a.tta", "-c:a tta"), encoded("a.wv", "-c:a wavpack"),
    Recording("a.voc", f"{_FFMPEG} -f voc -c:a pcm_u8 {{out}}"),  # whose rates are rounded
    # Sound that begins late; a rate and channels that change
    Recording("late.mp4", _VIDEO + " -c:a aac {out}", start_s=_LATE),
    Recording("late.mkv", _VIDEO + " -c:a libopus {out}", start_s=5.0),
    Recording("late.ts", _VIDEO + " -c:a aac {out}", start_s=_LATE),
    Recording("changing.aac", f"({_FFMPEG} -ar 48000 -c:a aac -f adts -; {_FFMPEG} -ar 24000 -ac 2 -c:a aac -f adts -)"
        " > {out}", talks=2),
    Recording("changing.mp3", f"({_FFMPEG} -ar 44100 -write_xing 0 -id3v2_version 0 -f mp3 -;"
        f" {_FFMPEG} -ar 48000 -ac 2 -write_xing 0 -id3v2_version 0 -f mp3 -)" " > {out}", talks=2),
)  # fmt: skip


def make(recording: Recording, files: dict[str, bytes], talk: Path, folder: Path) -> Path:
    """Writes the file; raises RuntimeError with the words of a program that failed."""
    path = folder / recording.name
    if isinstance(recording.make, str):
        command = recording.make.format(talk=talk, out=path)
        run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"{command}: {run.stderr.strip()[-300:]}")
        files[recording.name] = path.read_bytes()
    else:
        path.write_bytes(recording.make(files, talk.read_bytes()))
    return path


def decode(path: Path) -> np.ndarray:
    """Mono samples [n] at 16 kHz as FFmpeg's command decodes them."""
    command = ["ffmpeg", "-v", "quiet", "-i", path, "-ac", "1", "-ar", str(RATE_HZ), "-f", "s16le", "-"]
    data = subprocess.run(command, capture_output=True, check=False).stdout
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2") / np.float32(32768)


def likeness(samples: np.ndarray, expected: np.ndarray) -> float:
    """The highest correlation of [n] samples with the expected ones, shifted by at most 0.2 s."""
    count = min(len(samples), len(expected))
    one, other = samples[:count], expected[:count]
    size = 1 << (2 * count).bit_length()
    products = np.fft.irfft(np.fft.rfft(one, size) * np.conj(np.fft.rfft(other, size)))
    most = max(products[: RATE_HZ // 5].max(), products[-RATE_HZ // 5 :].max())
    return float(most / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-9))
