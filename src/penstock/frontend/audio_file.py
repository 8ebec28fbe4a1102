"""Audio files as samples: whole, or block by block for files of any length. Errors name the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock.errors import AudioError, PackageError
from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import EACH, MIX, Audio, Channel, TrackReader, load, seconds

_NO_SAMPLES = np.zeros(0, np.float32)


def read_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> np.ndarray:
    """Mono samples [n] float32 in -1 .. 1 at `sample_rate_hz`: the mix of all channels, or one channel.

    Reads what docs/transcription.md lists. Raises AudioError with the name of an unusable file, PackageError without
    the library for its format. Warns of each remark: where samples are missing, and where the channels cancel.
    """
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, sample_rate_hz, channel)
    for remark in audio.remarks:
        warnings.warn(f"{path}: {remark.text}", stacklevel=2)
    return audio.tracks[0].samples


def load_audio(path: str | Path, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """The tracks of a file at `sample_rate_hz`, where it begins, and remarks; `-` is standard input.

    Raises AudioError with the name of an unusable file, PackageError without the library for its format.
    """
    with named(path):
        return load(path, sample_rate_hz, channel)


def audio_seconds(path: str | Path) -> float:
    """Duration of a file, from its header if that has it. Raises AudioError if it is missing, not audio or empty."""
    with named(path):
        return seconds(path)


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turns ValueError and ImportError of readers into errors with a code and the file's name."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(f"{path}: {error}") from error


class AudioBlocks:
    """A file whose tracks are read side by side; the same samples as from `load_audio`. Close it.

    Raises AudioError with the name of an unusable file, at once or while a track is read, and PackageError without the
    library for its format.
    """

    def __init__(self, path: str | Path, sample_rate_hz: int, channel: Channel = MIX):
        """path: a file, or `-` for standard input."""
        self._path = path
        with named(path):
            self._reader = TrackReader(path, sample_rate_hz, channel)
        self._blocks = self._reader.blocks()
        self._failure: AudioError | None = None
        self.start_s = self._reader.start_s
        """The time of the first sample in the file."""
        self.tracks = [AudioTrack(self, name) for name in self._reader.names]
        """The mix or the chosen channel, or every channel."""
        try:
            self.advance()
        except BaseException:
            self.close()
            raise

    @property
    def remarks(self) -> list[Remark]:
        """Gaps in the samples, and channels that cancel in their mix; known when a track is done."""
        return self._reader.remarks

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
        except AudioError as error:
            self._failure = error
            raise
        for number, track in enumerate(self.tracks):
            track.add(None if block is None else block[number])


class AudioTrack:
    """One track of a file that is being read."""

    def __init__(self, source: AudioBlocks, channel: str | None):
        self.channel = channel
        """Name of the channel if each is a track, else None."""
        self._source = source
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

    def add(self, samples: np.ndarray | None) -> None:
        """Takes the track's samples of one block; None at the end of the file."""
        if samples is None:
            self._has_ended = True
        else:
            self._pending = np.concatenate([self._pending, samples]) if len(self._pending) else samples
