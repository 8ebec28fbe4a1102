"""Reads what libsndfile cannot, such as webm, m4a and mp4, with FFmpeg of the package `av`: the first audio stream."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

INSTALL = "pip install av"
_BLOCK_FRAMES = 65_536
_MICROSECONDS = 1_000_000


class MediaReader:
    """Reads a file block by block, as `SoundReader` does; close it, or use it as a context manager.

    Takes over the open file. Raises ValueError with the reason why it is unusable, and ImportError without FFmpeg.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._av, self._media = _av(), None
        try:
            self._media = self._av.open(file)
            if not self._media.streams.audio:
                raise ValueError("has no audio stream")
            self._frames = self._media.decode(audio=0)
            self._first = next(self._frames, None)
            if self._first is None:
                raise ValueError("has no audio")
        except self._av.FFmpegError as error:
            self.close()
            raise ValueError(f"cannot be decoded: {error.strerror}") from None
        except BaseException:
            self.close()
            raise
        self.rate_hz: int = self._first.sample_rate
        self.channels: int = len(self._first.layout.channels)
        self._converter = self._av.AudioResampler(format="fltp", layout=self._first.layout, rate=self.rate_hz)
        duration = self._media.duration
        self.seconds: float | None = duration / _MICROSECONDS if duration else None
        """Duration from the header; None where it has none."""
        self.problem: str | None = None
        """Why the file ends early; set after the last block."""

    def blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        """Samples [n, channels], up to the end of the file or its damage."""
        parts: list[npt.NDArray[np.float32]] = []
        pending = done = 0
        for part in self._parts():
            parts.append(part)
            pending += len(part)
            if pending >= _BLOCK_FRAMES:
                yield np.concatenate(parts)
                done, pending = done + pending, 0
                parts.clear()
        if parts:
            yield np.concatenate(parts)
        if self.problem:
            self.problem = f"is damaged after {(done + pending) / self.rate_hz:.2f} s: {self.problem}"

    def _parts(self) -> Iterator[npt.NDArray[np.float32]]:
        """Samples [n, channels] of each frame; `problem` has the decoder's words where the last one is damaged."""
        frame = self._first
        try:
            while frame is not None:
                yield from map(_samples, self._converter.resample(frame))
                frame = next(self._frames, None)
        except self._av.FFmpegError as error:
            self.problem = error.strerror
        yield from map(_samples, self._converter.resample(None))

    def close(self) -> None:
        """Closes the file."""
        if self._media is not None:
            self._media.close()
        self._file.close()

    def __enter__(self) -> "MediaReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def has_ffmpeg() -> bool:
    """True if the package `av` is installed."""
    return find_spec("av") is not None


def _samples(frame: Any) -> npt.NDArray[np.float32]:
    samples: npt.NDArray[np.float32] = frame.to_ndarray().T
    return samples


def _av() -> Any:
    """The package av. Imported late: it is an extra, and takes 0.1 s."""
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"has a format that needs FFmpeg, which is not installed: {INSTALL} (the extra `media`)"
        ) from error
    return av
