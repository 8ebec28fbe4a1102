"""Reads audio files with soundfile (libsndfile) and resamples them with soxr: tracks, and where a file ends early.

The client, the core and the gateway read files with it; other formats with FFmpeg, see `media_file`.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import soxr

from penstock_client.audio.channels import MIX, Channel, MixMonitor, select
from penstock_client.audio.media_file import MediaReader
from penstock_client.audio.sound_format import ACCEPTED, HEAD_BYTES, MEDIA, decoder_of

STDIN = "-"
"""The path of standard input."""

_SHORTFALL = re.compile(r"(?:data|Data Size|SSND)\s*: (\d+) \(should be (\d+)\)")
"""libsndfile's log line for a WAV, AU or AIFF file that is shorter than its header states: bytes stated, present."""
UNKNOWN_SIZE_BYTES = 0x7FFF0000
"""Programs that write to a pipe state at least this size, because they do not know it yet."""
_UNKNOWN_FRAMES = 1 << 62
"""libsndfile counts at least this many in a FLAC file that was written to a pipe: its header has no length."""
_BAD_SEEK = 39
"""libsndfile's error where soundfile seeks to the end of such a file, after it has read the last samples."""
_MAX_OGG_PAGE_BYTES = 65_307
_BLOCK_FRAMES = 65_536
_MIN_RATE_HZ = 1000
"""A broken header may state 1 Hz: resampled, a minute of audio would have gigabytes."""


class Track(NamedTuple):
    """One channel of a file, or the mix of all."""

    channel: str | None
    """The name of the channel if each channel is a track, else None."""
    samples: npt.NDArray[np.float32]
    """[n], full scale 1."""


class Audio(NamedTuple):
    """A file's tracks, and what its user should know about them."""

    tracks: list[Track]
    problem: str | None
    """Why the file ends early; the tracks have what is before."""
    warning: str | None
    """Set where the channels cancel in the mix."""


def load(source: str | Path | bytes, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """A file, or its content, in any format of `open_sound`, as tracks at `sample_rate_hz`; `-` is standard input.

    A truncated file has the tracks up to its end, and `problem`. Raises ValueError with the reason why a file is
    unusable, such as samples that are not finite or a missing channel, and ImportError without the format's library.
    """
    with open_sound(source) as reader:
        samples = np.concatenate([np.zeros((0, reader.channels), np.float32), *reader.blocks()])  # [n, channels]
    monitor = MixMonitor(channel)
    monitor.add(samples)
    return Audio(tracks(samples, reader.rate_hz, sample_rate_hz, channel), reader.problem, monitor.warning)


def open_sound(source: str | Path | bytes) -> "SoundReader | MediaReader":
    """The reader of a file, or of its content; its first bytes decide. `-` is standard input.

    Raises ValueError with the reason why a file is unusable, and ImportError without the format's library.
    """
    try:
        file = open_file(source)
        head = file.read(HEAD_BYTES)
        file.seek(0)
    except OSError as error:
        raise ValueError(_reason(error)) from error
    if decoder_of(head) != MEDIA:
        return SoundReader(file)
    try:
        return MediaReader(file)
    except ImportError:
        file.close()
        raise


class SoundReader:
    """Reads a file block by block; close it, or use it as a context manager.

    Takes over the open file. Raises ValueError with the reason why it is unusable, and ImportError without libsndfile.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._sound: Any = None
        try:
            self._soundfile = _soundfile()
            self._sound = self._soundfile.SoundFile(file)
        except (OSError, RuntimeError, TypeError) as error:
            self.close()
            raise ValueError(_reason(error)) from error
        except ImportError:
            self.close()
            raise
        self.rate_hz: int = self._sound.samplerate
        if self.rate_hz < _MIN_RATE_HZ:
            self.close()
            raise ValueError(f"has a sample rate of {self.rate_hz} Hz; accepted: from {_MIN_RATE_HZ} Hz")
        self.channels: int = self._sound.channels
        is_known = self._sound.frames < _UNKNOWN_FRAMES
        self.seconds: float | None = self._sound.frames / self.rate_hz if is_known else None
        """Duration from the header; None where it has none."""
        self.problem: str | None = None
        """Why the file ends early; set after the last block."""

    def blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        """Samples [n, channels], up to the end of the file or its damage."""
        stated, frames, damage = _stated_frames(self._sound), 0, None
        while damage is None:
            block, damage = self._read_block()
            if not len(block):
                break
            frames += len(block)
            yield block
        self.problem = _problem(frames / self.rate_hz, stated / self.rate_hz, damage, _is_cut_ogg(self._file))

    def _read_block(self) -> tuple[npt.NDArray[np.float32], str | None]:
        """The next samples [n, channels], and why they are the last; none at the end of the file."""
        out = np.full((_BLOCK_FRAMES, self.channels), np.nan, np.float32)
        try:
            return self._sound.read(dtype="float32", always_2d=True, out=out), None
        except self._soundfile.LibsndfileError as error:  # it does not say how much it has read before the damage
            is_unread = np.isnan(out).all(axis=1)
            end = int(is_unread.argmax()) if is_unread.any() else len(out)
            is_end = self.seconds is None and error.code == _BAD_SEEK
            return out[:end], None if is_end else error.error_string.rstrip(".")
        except (OSError, RuntimeError) as error:
            raise ValueError(_reason(error)) from error

    def close(self) -> None:
        """Closes the file."""
        for each in (self._sound, self._file):
            if each is not None:
                each.close()

    def __enter__(self) -> "SoundReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tracks(samples: npt.NDArray[np.float32], rate_hz: int, sample_rate_hz: int, channel: Channel = MIX) -> list[Track]:
    """The tracks of samples [n, channels]. Raises ValueError for unusable ones, as `load` does."""
    if not samples.size:
        raise ValueError("has no audio")
    return [Track(name, _resample(mono, rate_hz, sample_rate_hz)) for name, mono in select(samples, channel)]


def seconds(path: str | Path) -> float:
    """Duration from the header of a file, which is read to its end where the header has none.

    Raises ValueError with the reason, ImportError without the format's library.
    """
    with open_sound(path) as reader:
        duration_s = sum(map(len, reader.blocks())) / reader.rate_hz if reader.seconds is None else reader.seconds
        if not duration_s:
            raise ValueError("has no audio")
        return duration_s


def open_file(source: str | Path | bytes) -> BinaryIO:
    """A file that can seek: what cannot, such as a pipe, is read to its end. Raises ValueError for an empty one."""
    file: BinaryIO
    if isinstance(source, bytes):
        file = io.BytesIO(source)
    elif str(source) == STDIN:
        file = open(0, "rb", closefd=False)  # noqa: SIM115
    else:
        file = Path(source).open("rb")  # noqa: SIM115
    if not file.seekable():
        with file:
            file = io.BytesIO(file.read())
    if not file.read(1):
        file.close()
        raise ValueError("has no audio")
    file.seek(0)
    return file


def _stated_frames(sound: Any) -> int:
    """The length in the header, 0 where it has none.

    libsndfile itself counts the frames that are there, and only logs the difference.
    """
    frames: int = sound.frames if sound.frames < _UNKNOWN_FRAMES else 0
    if match := _SHORTFALL.search(sound.extra_info):
        stated_bytes, present_bytes = map(int, match.groups())
        if 0 < present_bytes < stated_bytes < UNKNOWN_SIZE_BYTES:
            return round(frames * stated_bytes / present_bytes)
    return frames


def _is_cut_ogg(file: BinaryIO) -> bool:
    """True for an Ogg file whose last page is cut or is not marked as the last (RFC 3533, section 6)."""
    file.seek(0)
    if file.read(4) != b"OggS":
        return False
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _MAX_OGG_PAGE_BYTES))
    tail = file.read()
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < 27:
        return True
    segments = page[26]  # the table of their sizes follows, then the segments
    is_last, page_bytes = bool(page[5] & 4), 27 + segments + sum(page[27 : 27 + segments])
    return not is_last or len(page) < page_bytes


def _problem(duration_s: float, stated_s: float, damage: str | None, is_cut: bool) -> str | None:
    if duration_s < stated_s:
        return f"is truncated or damaged: ends after {duration_s:.2f} s of {stated_s:.2f} s"
    if damage:
        return f"is damaged after {duration_s:.2f} s: {damage}"
    return f"is truncated: ends after {duration_s:.2f} s without the mark of its end" if is_cut else None


def _resample(mono: npt.NDArray[np.float32], rate_hz: int, sample_rate_hz: int) -> npt.NDArray[np.float32]:
    if not np.isfinite(mono).all():
        raise ValueError("some samples are not finite numbers")
    resampled = mono if rate_hz == sample_rate_hz else soxr.resample(mono, rate_hz, sample_rate_hz)
    return np.ascontiguousarray(resampled, np.float32)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    reason = " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")
    return f"not a readable audio file: {reason}; accepted: {ACCEPTED}"


def _soundfile() -> ModuleType:
    """The package soundfile. Imported late, so that its absence is an error of reading files only."""
    try:
        import soundfile
    except ImportError as error:
        raise ImportError("audio files are read with the package soundfile: pip install soundfile") from error
    except OSError as error:  # the package is there, its library is not
        raise ImportError(
            "audio files are read with the library libsndfile, which is missing: apt-get install libsndfile1, "
            f"dnf install libsndfile or brew install libsndfile ({error})"
        ) from error
    package: ModuleType = soundfile  # it has no types
    return package
