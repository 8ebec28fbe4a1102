"""Audio files as tracks of samples at one rate: the mix of their channels, one of them, or each."""

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import soxr

from penstock_common.audio.live_resampler import LiveResampler
from penstock_common.audio.pcm import CANCELLED, MAX_CHANNELS, Block, Remark
from penstock_common.audio.sound_file import open_audio
from penstock_common.errors import AudioError, PackageError
from penstock_common.samples import SAMPLE_RATE_HZ

Channel = Literal["mix", "each", "left", "right"] | int
"""All channels averaged, each by itself, or one: left is channel 1, right is channel 2."""

MIX: Literal["mix"] = "mix"
EACH: Literal["each"] = "each"
CHANNELS = "mix, each, left, right, or the number of a channel from 1"

_NUMBERS = {"left": 1, "right": 2}
_SILENT_POWER = 1e-8
_MIN_POWER_RATIO = 0.1
"""Power of the sum over the sum of the powers: 1 for unrelated channels, 2 for two equal ones, 0 for opposite ones."""
Samples = npt.NDArray[np.float32]


def parse_channel(text: str) -> Channel:
    """The channel that a user names. Raises ValueError with what is accepted."""
    channel: Any = int(text) if text.isascii() and text.isdigit() else text
    check_channel(channel)
    return channel


def check_channel(channel: Channel) -> None:
    """Raises ValueError for what names no channel of any recording."""
    if channel not in (MIX, EACH, *_NUMBERS) and not (isinstance(channel, int) and channel > 0):
        raise ValueError(f"channel is {channel!r}; accepted: {CHANNELS}")


def select(samples: npt.NDArray[np.float32], channel: Channel) -> list[tuple[str | None, npt.NDArray[np.float32]]]:
    """The chosen tracks [n] of samples [n, channels], each with the name of its channel with `each`, else None.

    Raises ValueError where there is no such channel.
    """
    count = samples.shape[1]
    if channel == MIX:
        return [(None, samples.mean(axis=1) if count > 1 else samples[:, 0])]
    if channel == EACH:
        return list(zip(channel_names(count), samples.T, strict=True))
    check_channel(channel)
    number = _NUMBERS[channel] if isinstance(channel, str) else channel
    if number > count:
        raise ValueError(f"has {count} channel{'s' if count > 1 else ''}, so there is no channel {channel}")
    return [(None, samples[:, number - 1])]


def channel_names(count: int) -> list[str]:
    """Names of the channels of a recording: mono; left and right; numbers from 1."""
    return {1: ["mono"], 2: ["left", "right"]}.get(count) or [str(number) for number in range(1, count + 1)]


class MixMonitor:
    """Watches the channels of a recording for a mix in which they cancel: their correlation is below -0.9.

    Compares the power of their sum with the sum of their powers, both without the mean.
    """

    def __init__(self, channel: Channel = MIX):
        self._is_mixed = channel == MIX
        self._frames = 0
        self._sum: npt.NDArray[np.float64] | float = 0.0
        """[channels]"""
        self._products: npt.NDArray[np.float64] | float = 0.0
        """[channels, channels]"""

    def add(self, samples: npt.NDArray[np.float32]) -> None:
        """Takes the next samples [n, channels]."""
        if self._is_mixed and samples.shape[1] > 1:
            self._frames += len(samples)
            self._sum = self._sum + samples.sum(axis=0, dtype=np.float64)
            self._products = self._products + np.einsum("nc,nd->cd", samples, samples, dtype=np.float64)

    @property
    def cancels(self) -> bool:
        """True where the channels so far cancel."""
        if not self._frames:
            return False
        mean = np.asarray(self._sum) / self._frames
        covariance = np.asarray(self._products) / self._frames - np.outer(mean, mean)
        sum_power, power = covariance.sum(), np.trace(covariance)
        return bool(power >= _SILENT_POWER and sum_power < _MIN_POWER_RATIO * power)


class Track(NamedTuple):
    """One channel of a file, or the mix of all."""

    channel: str | None
    """The name of the channel if each channel is a track, else None."""
    samples: Samples
    """[n], full scale 1."""


class Audio(NamedTuple):
    """A file's tracks, and what its user should know about them."""

    tracks: list[Track]
    start_s: float
    """The time of the first sample in the file: above 0 in a video whose sound begins later."""
    remarks: list[Remark]
    """Gaps in the samples."""


class TrackMaker:
    """Makes tracks at one rate of blocks, whose rate and channels may change."""

    def __init__(
        self,
        channels: int,
        sample_rate_hz: int,
        channel: Channel = MIX,
        max_channels: int = MAX_CHANNELS,
        is_live: bool = False,
    ):
        """channels: of the first block. `is_live`: samples wait for 5 ms of those behind them, not for up to 120 ms.

        Raises ValueError where the block has no such channel.
        """
        self._channels, self._sample_rate_hz, self._channel = channels, sample_rate_hz, channel
        self._max_channels, self._is_live = max_channels, is_live
        self._rate_hz = sample_rate_hz
        self._resamplers: list[Any] = []
        self._monitor = MixMonitor(channel)
        self.names = [name for name, _ in select(np.zeros((0, channels), np.float32), channel)]
        """The name of each track: None, or with "each" those of the channels."""
        self.has_samples = False

    @property
    def remarks(self) -> list[Remark]:
        """Whether the channels so far cancel in their mix."""
        return [Remark(CANCELLED, 0.0, 0.0)] if self._monitor.cancels else []

    def push(self, block: Block) -> list[Samples]:
        """The next samples [n] of each track. Raises ValueError for samples that are not finite."""
        samples = block.samples
        self.has_samples |= bool(len(samples))
        if not np.isfinite(samples).all():
            raise ValueError("some samples are not finite numbers")
        if samples.shape[1] > self._max_channels:
            raise ValueError(f"has {samples.shape[1]} channels; accepted: 1 to {self._max_channels}")
        if samples.shape[1] == self._channels:
            self._monitor.add(samples)
        elif self._channel != MIX and (self._channel == EACH or samples.shape[1] < self._channels):  # it has changed
            samples = np.repeat(samples.mean(axis=1, keepdims=True), self._channels, axis=1)
        tracks = [np.ascontiguousarray(each, np.float32) for _, each in select(samples, self._channel)]
        rests: list[Samples] = []
        if block.rate_hz != self._rate_hz:
            rests = self.flush()
            self._rate_hz = block.rate_hz
        if self._rate_hz != self._sample_rate_hz:
            if not self._resamplers:
                self._resamplers = [self._resampler() for _ in self.names]
            tracks = [one.resample_chunk(each) for one, each in zip(self._resamplers, tracks, strict=True)]
        return [np.concatenate(pair) for pair in zip(rests, tracks, strict=True)] if rests else tracks

    def _resampler(self) -> Any:
        if self._is_live:
            return LiveResampler(self._rate_hz, self._sample_rate_hz)
        return soxr.ResampleStream(self._rate_hz, self._sample_rate_hz, 1, "float32")

    def flush(self) -> list[Samples]:
        """The rest of each track; none where nothing is held back."""
        rests, self._resamplers = self.end_segment(), []
        return rests

    def end_segment(self) -> list[Samples]:
        """The rest of each track, as if silence followed. Live audio may go on, and none of it comes twice."""
        return [each.resample_chunk(np.zeros(0, np.float32), last=True) for each in self._resamplers]


class TrackReader:
    """A file's tracks, block by block, so that memory does not grow with its length. Close it.

    Raises ValueError with the reason why a file is unusable, such as samples that are not finite or a missing channel,
    at once or while it is read, and ImportError without the format's library.
    """

    def __init__(self, source: Any, sample_rate_hz: int, channel: Channel = MIX, max_channels: int = MAX_CHANNELS):
        """source: as of `open_audio`, or a reader."""
        self._reader: Any = source if hasattr(source, "blocks") else open_audio(source)
        self.start_s = self._reader.start_s
        try:
            self._maker = TrackMaker(self._reader.channels, sample_rate_hz, channel, max_channels)
        except ValueError:
            self.close()
            raise
        self.names = self._maker.names

    @property
    def remarks(self) -> list[Remark]:
        """Complete after the last block."""
        return [*self._reader.remarks, *self._maker.remarks]

    def blocks(self) -> Iterator[list[Samples]]:
        """The next samples [n] of each track."""
        for block in self._reader.blocks():
            yield self._maker.push(block)
        if not self._maker.has_samples:
            raise ValueError("has no audio")
        if rests := self._maker.flush():
            yield rests

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()


def load(source: str | Path | bytes, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """A file, or its content, in any format of `open_audio`, as tracks at `sample_rate_hz`; `-` is standard input.

    Raises as `TrackReader`.
    """
    with closing(TrackReader(source, sample_rate_hz, channel)) as reader:
        joined = [np.concatenate(parts) for parts in zip(*reader.blocks(), strict=True)]
        return Audio(list(map(Track, reader.names, joined)), reader.start_s, reader.remarks)


def read_audio(path: str | Path, channel: Channel = MIX) -> npt.NDArray[np.float32]:
    """Mono samples [n] in -1 .. 1 at 16 kHz: the mix of all channels, or one channel. Other rates are resampled.

    Reads what docs/transcription.md lists. Raises AudioError for a file that is missing, empty, not audio or without
    the channel, or has samples that are not finite; PackageError without the library for its format. Warns of each
    remark: where samples are missing, and where the channels cancel in the mix.
    """
    return read_mono(path, channel)[0]


def read_mono(path: str | Path, channel: Channel = MIX) -> tuple[npt.NDArray[np.float32], float]:
    """The samples of `read_audio`, and the time of the first one in the file."""
    if channel == EACH:
        raise ValueError("channel is 'each', which gives several tracks: use load_audio")
    audio = load_audio(path, channel)
    for remark in audio.remarks:
        warnings.warn(f"{path}: {remark.text}", stacklevel=3)
    return audio.tracks[0].samples, audio.start_s


def load_audio(path: str | Path, channel: Channel = MIX) -> Audio:
    """The tracks of a file at 16 kHz, where it begins, and remarks on what is missing; `-` is standard input.

    With channel "each", every channel is a track. Raises AudioError for an unusable file, PackageError without the
    library for its format, ValueError for what names no channel.
    """
    check_channel(channel)
    with naming(path):
        return load(path, SAMPLE_RATE_HZ, channel)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turns the errors of readers into those of this package, which name the file."""
    try:
        yield
    except ImportError as error:
        raise PackageError(str(error)) from error
    except ValueError as error:
        raise AudioError(path, str(error)) from error
