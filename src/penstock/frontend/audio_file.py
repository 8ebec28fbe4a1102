"""Audio files and parts of files as samples: whole, or block by block for any length. Errors name the file."""

import math
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import AudioError, PackageError
from penstock_common.audio.pcm import CUT, Block, Remark
from penstock_common.audio.sound_file import Reader, open_audio
from penstock_common.audio.tracks import MIX, Channel, TrackReader

ROUNDING_S = 0.5
"""A stated duration may differ by this from that of the audio."""
_Timed = tuple[float, float, Block]
"""A block behind the times of its begin and end in the file."""
_NO_SAMPLES = np.zeros(0, np.float32)
_READ_SAMPLES = 1 << 17
_MAX_SHARED_S = 300.0
"""Parts up to this duration share a decoder; their samples are kept, 64 kB per second at 16 kHz."""


class FilePart(NamedTuple):
    """A file or a part of it."""

    path: str
    offset_s: float | None = None
    """The begin of the part in the time of the file; None for the whole file."""
    duration_s: float | None = None
    """None: up to the end of the file."""

    @classmethod
    def of(cls, audio: "str | Path | FilePart") -> "FilePart":
        """The part; of a path the whole file."""
        return audio if isinstance(audio, FilePart) else cls(str(audio))

    @property
    def begin_s(self) -> float:
        """The begin in the time of the file, 0 for the whole file."""
        return self.offset_s or 0.0

    @property
    def end_s(self) -> float:
        """The end in the time of the file, infinite for its own."""
        return math.inf if self.duration_s is None else self.begin_s + self.duration_s

    @property
    def label(self) -> str:
        """The times for names: "#12.500-15.250" with microseconds where there are any, "" for the whole file."""
        ends = ("end" if math.isinf(at_s) else f"{at_s:.6f}".removesuffix("000") for at_s in (self.begin_s, self.end_s))
        return "" if self.offset_s is None else f"#{'-'.join(ends)}"

    def __str__(self) -> str:
        return self.path + self.label


def audio_span(path: str | Path) -> tuple[float, float]:
    """Times of the first sample and of the end of a file, from its header if that has them.

    Raises AudioError if it is missing, not audio or empty.
    """
    with named(path), closing(open_audio(path)) as reader:
        duration_s = reader.seconds or sum(len(block.samples) / block.rate_hz for block in reader.blocks())
        if not duration_s:
            raise ValueError("has no audio")
        return reader.start_s, reader.start_s + duration_s


def read_audio(path: str | Path, sample_rate_hz: int) -> np.ndarray:
    """The samples of a file, as `AudioSource.read`."""
    return AudioSource(sample_rate_hz).read(path)


@contextmanager
def named(path: str | Path | FilePart) -> Iterator[None]:
    """Turns ValueError and ImportError of readers into errors with a code and the file's name."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(f"{path}: {error}") from error


class _PartReader:
    """A part of an open file, as a reader of `open_audio`."""

    def __init__(self, reader: Reader, blocks: Iterator[_Timed], part: FilePart, is_shared: bool = False):
        """blocks: from one before the part; is_shared: the file stays open for another part."""
        self._reader, self._blocks, self._part, self._is_shared = reader, blocks, part, is_shared
        self._missing: list[Remark] = []
        self.channels, self.start_s = reader.channels, max(reader.start_s, part.begin_s)

    @property
    def remarks(self) -> list[Remark]:
        """The file's that concern the part."""
        part, remarks = self._part, self._reader.remarks
        within = (one for one in remarks if one.start_s < part.end_s and one.start_s + one.lost_s >= part.begin_s)
        return [*within, *self._missing]

    def blocks(self) -> Iterator[Block]:
        """The samples of the part. Raises ValueError if the file ends before it."""
        end_s = self._reader.start_s
        for begin_s, end_s, block in self._blocks:  # noqa: B007 - the end of the last one
            # A time between two samples counts as the later one; an infinite one is longer than any file.
            times_s = (min(at_s - begin_s, 1e9) for at_s in (self._part.begin_s, self._part.end_s))
            begin, end = (max(0, math.floor(time_s * block.rate_hz + 0.5)) for time_s in times_s)
            if len(samples := block.samples[begin:end]):
                yield block._replace(samples=samples)
            if end <= len(block.samples):
                return
        if end_s <= self._part.begin_s:
            raise ValueError(f"begins after the audio, which ends at {end_s:.3f} s")
        if ROUNDING_S < self._part.end_s - end_s < math.inf:
            self._missing.append(Remark(CUT, end_s, self._part.end_s - end_s))

    def close(self) -> None:
        """Closes the file."""
        if not self._is_shared:
            self._reader.close()


def _timed(reader: Reader) -> Iterator[_Timed]:
    base_s, frames, rate_hz = reader.start_s, 0, reader.rate_hz
    for block in reader.blocks():
        if block.rate_hz != rate_hz:
            base_s, frames, rate_hz = base_s + frames / rate_hz, 0, block.rate_hz
        begin, frames = frames, frames + len(block.samples)
        yield base_s + begin / rate_hz, base_s + frames / rate_hz, block


class AudioBlocks:
    """A file or a part of it whose tracks are read side by side. A part has the samples of a file cut there. Close it.

    Raises AudioError with the name of an unusable file, at once or while a track is read, and PackageError without the
    library for its format.
    """

    def __init__(
        self,
        audio: str | Path | FilePart,
        sample_rate_hz: int,
        channel: Channel = MIX,
        reader: _PartReader | None = None,
    ):
        """audio: a file, `-` for standard input, or a part; reader: that of the part, if its file is open."""
        self.part = FilePart.of(audio)
        with named(self.part):
            if self.part.offset_s is not None and reader is None:
                whole = open_audio(self.part.path)
                reader = _PartReader(whole, _timed(whole), self.part)
            self._reader = TrackReader(reader or self.part.path, sample_rate_hz, channel)
        self._blocks = self._reader.blocks()
        self._failure: AudioError | None = None
        self.has_ended = False
        """True when all samples are in the tracks."""
        self.start_s = self._reader.start_s
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
            with named(self.part):
                block = next(self._blocks, None)
        except AudioError as error:
            self._failure = error
            raise
        self.has_ended = block is None
        for track, samples in zip(self.tracks, block or (), strict=False):
            track.add(samples)


class AudioSource:
    """Opens files and parts of files. Parts of up to 5 min of one file, by their begin, share its decoder. Close it."""

    def __init__(self, sample_rate_hz: int, channel: Channel = MIX):
        self._sample_rate_hz, self._channel = sample_rate_hz, channel
        self._last = FilePart("")
        """The last part that shares a decoder."""
        self._reader: Reader | None = None
        self._kept: deque[_Timed] = deque()
        """Blocks that the next part may need, too."""

    def open(self, audio: str | Path | FilePart) -> AudioBlocks:
        """Opens a file or a part; raises as `AudioBlocks`."""
        part = FilePart.of(audio)
        if part.end_s - part.begin_s > _MAX_SHARED_S:
            return AudioBlocks(part, self._sample_rate_hz, self._channel)
        if self._reader is None or part.path != self._last.path or part.begin_s < self._last.begin_s:
            self.close()
            with named(part):
                self._reader = open_audio(part.path)
            self._blocks = _timed(self._reader)
        self._last = part
        try:
            reader = _PartReader(self._reader, self._from(part.begin_s), part, is_shared=True)
            blocks = AudioBlocks(part, self._sample_rate_hz, self._channel, reader)
            while not blocks.has_ended:
                blocks.advance()
            return blocks
        except AudioError:  # the next part opens the file again
            self.close()
            raise

    def _from(self, begin_s: float) -> Iterator[_Timed]:
        while self._kept and self._kept[0][1] < begin_s:
            self._kept.popleft()
        yield from tuple(self._kept)
        for timed in self._blocks:
            if timed[1] >= begin_s:
                self._kept.append(timed)
            yield timed

    def read(self, audio: str | Path | FilePart) -> np.ndarray:
        """Mono samples [n] float32 in -1 .. 1: the mix of all channels, or the chosen one.

        Reads what docs/transcription.md lists; raises as `AudioBlocks`. Warns of each remark: where samples are
        missing, and where the channels cancel.
        """
        blocks = self.open(audio)
        try:
            (track,) = blocks.tracks
            samples = [_NO_SAMPLES]
            while not track.is_done:
                samples.append(track.read(_READ_SAMPLES))
            for remark in blocks.remarks:
                warnings.warn(f"{blocks.part}: {remark.text}", stacklevel=2)
            return np.concatenate(samples)
        finally:
            blocks.close()

    def close(self) -> None:
        """Closes the file of the last part."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._kept.clear()


class AudioTrack:
    """One track of a file that is being read."""

    def __init__(self, source: AudioBlocks, channel: str | None):
        self.channel = channel
        """Name of the channel if each is a track, else None."""
        self._source = source
        self._pending = _NO_SAMPLES

    @property
    def is_done(self) -> bool:
        """True when `read` has returned the last samples."""
        return self._source.has_ended and not len(self._pending)

    def read(self, count: int) -> np.ndarray:
        """The next `count` samples [n] float32, fewer at the end of the track."""
        # One more sample shows whether these are the last.
        while len(self._pending) <= count and not self._source.has_ended:
            self._source.advance()
        samples, self._pending = self._pending[:count], self._pending[count:]
        return samples

    def add(self, samples: np.ndarray) -> None:
        """Takes the track's samples of one block."""
        self._pending = np.concatenate([self._pending, samples]) if len(self._pending) else samples
