"""Audio files read block by block, so that memory does not grow with a file's length."""

from pathlib import Path

import numpy as np
import soxr

from penstock.errors import AudioError
from penstock.frontend.audio_file import named
from penstock_client.audio.channels import MIX, Channel, MixMonitor, select
from penstock_client.audio.sound_file import open_sound

_NO_SAMPLES = np.zeros(0, np.float32)


class AudioBlocks:
    """A file whose tracks are read side by side; the same samples as from `load_audio`. Close it.

    Raises AudioError with the name of an unusable file, at once or while a track is read, and PackageError without
    libsndfile.
    """

    def __init__(self, path: str | Path, sample_rate_hz: int, channel: Channel = MIX):
        """path: a file, or `-` for standard input."""
        self._path, self._channel = path, channel
        with named(path):
            self._reader = open_sound(path)
        self._blocks = self._reader.blocks()
        self._monitor = MixMonitor(channel)
        self._failure: AudioError | None = None
        try:
            with named(path):
                block = next(self._blocks, None)
                if block is None:
                    raise ValueError("has no audio")
                chosen = select(block, channel)
        except BaseException:
            self.close()
            raise
        self.tracks = [AudioTrack(self, name, self._reader.rate_hz, sample_rate_hz) for name, _ in chosen]
        """The mix or the chosen channel, or every channel."""
        self._take(block)

    @property
    def problem(self) -> str | None:
        """Why the file ends early, with its name; known when a track is done."""
        return self._reader.problem and f"{self._path}: {self._reader.problem}"

    @property
    def warning(self) -> str | None:
        """Set if the channels cancel in their mix, with the file's name; known when a track is done."""
        return self._monitor.warning and f"{self._path}: {self._monitor.warning}"

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()

    def advance(self) -> None:
        """Reads one block, for all tracks; after an error none: a track would go on after the hole."""
        if self._failure is not None:
            raise self._failure
        try:
            with named(self._path):
                block = next(self._blocks, None)
            if block is None:
                for track in self.tracks:
                    track.end()
            else:
                self._take(block)
        except AudioError as error:
            self._failure = error
            raise

    def _take(self, block: np.ndarray) -> None:
        with named(self._path):
            if not np.isfinite(block).all():
                raise ValueError("some samples are not finite numbers")
        self._monitor.add(block)
        for track, (_, samples) in zip(self.tracks, select(block, self._channel), strict=True):
            track.add(samples)


class AudioTrack:
    """One track of a file that is being read."""

    def __init__(self, source: AudioBlocks, channel: str | None, rate_hz: int, sample_rate_hz: int):
        self.channel = channel
        """Name of the channel if each is a track, else None."""
        self._source = source
        self._resampler = None
        if rate_hz != sample_rate_hz:
            self._resampler = soxr.ResampleStream(rate_hz, sample_rate_hz, 1, dtype="float32")
        self._pending = _NO_SAMPLES
        self._has_ended = False

    @property
    def is_done(self) -> bool:
        """True when `read` has returned the last samples."""
        return self._has_ended and not len(self._pending)

    def read(self, count: int) -> np.ndarray:
        """The next `count` samples [n] float32, fewer at the end of the track."""
        while len(self._pending) <= count and not self._has_ended:  # one more sample shows whether these are the last
            self._source.advance()
        samples, self._pending = self._pending[:count], self._pending[count:]
        return samples

    def add(self, samples: np.ndarray) -> None:
        """Takes the track's samples of one block, at the file's rate."""
        self._append(self._resampler.resample_chunk(samples) if self._resampler else samples)

    def end(self) -> None:
        """Takes the end of the file."""
        if self._resampler and not self._has_ended:
            self._append(self._resampler.resample_chunk(_NO_SAMPLES, last=True))
        self._has_ended = True

    def _append(self, samples: np.ndarray) -> None:
        self._pending = np.concatenate([self._pending, samples]) if len(self._pending) else samples.copy()
