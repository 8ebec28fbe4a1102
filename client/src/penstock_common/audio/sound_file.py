"""Opens recordings: WAV without compression is read here, everything else with FFmpeg, the rest with libsndfile."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import numpy as np

from penstock_common.audio.formats import HEAD_BYTES, MPEG_BYTES, is_container, is_stream, no_audio
from penstock_common.audio.media_file import BLOCK_SAMPLES, NEEDED, MediaReader, accepted_formats, has_ffmpeg
from penstock_common.audio.pcm import DAMAGED, UNREAD, Block, PcmStream, Remarks, check_form, read_wav_header

STDIN = "-"
_READ_BYTES = 1 << 17
_HALF_READ = ("MP3", "MPEG", "OGG")
"""Formats of which libsndfile reads a part only, without an error, where files are joined or state no length."""
_UNREAD_BYTES = 1 << 14
_UNKNOWN_FRAMES = 1 << 62
"""libsndfile counts at least this many in a FLAC file that was written to a pipe: its header has no length."""


def open_audio(source: str | Path | bytes | BinaryIO) -> "Reader":
    """The reader of a file, of its content, or of an open file; `-` is standard input. The first bytes decide.

    Raises ValueError with the reason why a file is unusable, and ImportError without the format's library.
    """
    file: BinaryIO | None = None
    try:
        file = _open_file(source)
        reader = _open(file, file.read(MPEG_BYTES))
    except BaseException as error:
        if file is not None:
            file.close()
        if isinstance(error, OSError):
            raise ValueError(_reason(error)) from error
        raise
    return reader


def _open(file: BinaryIO, head: bytes) -> "Reader":
    with contextlib.suppress(ValueError):  # FFmpeg may read what has a broken header
        if (reader := WavReader.of(file)) is not None:
            return reader
    if not has_ffmpeg():
        try:
            return SoundReader(file)
        except ValueError as error:
            if is_container(head[:HEAD_BYTES]) or is_stream(head):
                raise ImportError(NEEDED) from error
            raise
    try:
        if head.startswith(b".snd") and head[8:12] == bytes(4):  # FFmpeg takes 0 for no samples, not for unknown
            return MediaReader(cast(BinaryIO, _UnknownLength(file)))
        file.seek(0)
        return MediaReader(file)
    except ValueError as error:
        with contextlib.suppress(ValueError, ImportError):
            file.seek(0)
            return SoundReader(file)
        if is_container(head[:HEAD_BYTES]) or is_stream(head):
            raise
        raise ValueError(f"not a readable audio file: {no_audio(head)}; {accepted_formats()}") from error


class _UnknownLength:
    """An AU file as FFmpeg reads one of unknown length."""

    def __init__(self, file: BinaryIO):
        self._file = file
        file.seek(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        start = self._file.tell()
        data = bytearray(self._file.read(size))
        for position in range(max(8, start), min(12, start + len(data))):
            data[position - start] = 0xFF
        return bytes(data)


class _BlockReader:
    """A file that is read block by block. Close it."""

    start_s = 0.0
    """The time of the first sample in the file."""

    def __init__(self, file: BinaryIO, rate_hz: int, channels: int, seconds: float | None):
        check_form(channels, rate_hz)
        self._file, self.rate_hz, self.channels = file, rate_hz, channels
        self.seconds = seconds
        """Duration from the header; None where it has none."""
        self.remarks = Remarks()
        """Complete after the last block."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class WavReader(_BlockReader):
    """Reads a WAV file of samples without compression, whatever length it states."""

    @classmethod
    def of(cls, file: BinaryIO) -> "WavReader | None":
        """The reader of an open file; None for another or a compressed format. Raises ValueError for a broken one."""

        def peek(start: int, size: int) -> bytes:
            file.seek(start)
            return file.read(size)

        header = read_wav_header(peek)
        if header is None:
            return None
        pcm, header_bytes = header
        present_bytes = file.seek(0, io.SEEK_END) - header_bytes
        frames = min(pcm.data_bytes or present_bytes, present_bytes) // pcm.frame_bytes
        return cls(file, pcm.sample_rate_hz, pcm.channels, frames / pcm.sample_rate_hz)

    def blocks(self) -> Iterator[Block]:
        """The samples, up to the end of the file."""
        stream, is_end = PcmStream(), False
        self.remarks = stream.remarks
        self._file.seek(0)
        while not is_end:
            data = self._file.read(_READ_BYTES)
            is_end = not data
            yield from stream.push(data, is_end)


class SoundReader(_BlockReader):
    """Reads a file with libsndfile. Raises ValueError with the reason why it is unusable, ImportError without it."""

    def __init__(self, file: BinaryIO):
        self._soundfile = _soundfile()
        try:
            file.seek(0)
            self._sound = self._soundfile.SoundFile(file)
        except (OSError, RuntimeError, TypeError) as error:
            raise ValueError(_reason(error)) from error
        if self._sound.format in _HALF_READ or self._sound.frames >= _UNKNOWN_FRAMES:
            raise ImportError(NEEDED)
        rate_hz = self._sound.samplerate
        super().__init__(file, rate_hz, self._sound.channels, self._sound.frames / rate_hz)

    def blocks(self) -> Iterator[Block]:
        """The samples, up to the end of the file or its damage."""
        size, frames = max(1, BLOCK_SAMPLES // 8 // self.channels), 0
        buffer = np.empty((size, self.channels), np.float32)
        try:
            while True:
                buffer[:] = np.nan  # shows how many samples were read where the last read ends with an error
                if not (count := len(self._sound.read(out=buffer))):
                    break
                frames += count
                yield Block(self.rate_hz, buffer[:count].copy())
        except self._soundfile.LibsndfileError:
            count = int(np.isfinite(buffer).all(axis=1).sum())
            frames += count
            if count:
                yield Block(self.rate_hz, buffer[:count])
            self.remarks.note(DAMAGED, frames / self.rate_hz, max(0.0, (self.seconds or 0) - frames / self.rate_hz))
            return
        except (OSError, RuntimeError) as error:
            raise ValueError(_reason(error)) from error
        position = self._file.tell()
        if self._file.seek(0, io.SEEK_END) - position > _UNREAD_BYTES:
            self.remarks.note(UNREAD, frames / self.rate_hz)

    def close(self) -> None:
        """Closes the file."""
        self._sound.close()
        super().close()


Reader = WavReader | MediaReader | SoundReader


def _open_file(source: str | Path | bytes | BinaryIO) -> BinaryIO:
    """A file that can seek: what cannot, such as a pipe, is read to its end. Raises ValueError for an empty one."""
    file: BinaryIO
    if isinstance(source, bytes):
        file = io.BytesIO(source)
    elif not isinstance(source, str | Path):
        file = source
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


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    reason = " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")
    return f"not a readable audio file: {reason}; {accepted_formats()}"


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
