"""The tracks of a recording at one rate: the mix of its channels, one of them, or each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import soxr

from penstock_client.audio.channels import EACH, MIX, Channel, MixMonitor, select
from penstock_client.audio.live_resampler import LiveResampler
from penstock_client.audio.pcm import MAX_CHANNELS, Block
from penstock_client.audio.remarks import CANCELLED, Remark
from penstock_client.audio.sound_file import open_audio

Samples = npt.NDArray[np.float32]


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
    """Where samples are missing."""


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
        rests = [each.resample_chunk(np.zeros(0, np.float32), last=True) for each in self._resamplers]
        self._resamplers = []
        return rests


class TrackReader:
    """A file's tracks, block by block, so that memory does not grow with its length. Close it.

    Raises ValueError with the reason why a file is unusable, such as samples that are not finite or a missing channel,
    at once or while it is read, and ImportError without the format's library.
    """

    def __init__(
        self,
        source: str | Path | bytes | BinaryIO,
        sample_rate_hz: int,
        channel: Channel = MIX,
        max_channels: int = MAX_CHANNELS,
    ):
        """source: as of `open_audio`."""
        self._reader = open_audio(source)
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

    def __enter__(self) -> "TrackReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(source: str | Path | bytes, sample_rate_hz: int, channel: Channel = MIX) -> Audio:
    """A file, or its content, in any format of `open_audio`, as tracks at `sample_rate_hz`; `-` is standard input.

    Raises as `TrackReader`.
    """
    with TrackReader(source, sample_rate_hz, channel) as reader:
        joined = [np.concatenate(parts) for parts in zip(*reader.blocks(), strict=True)]
        return Audio(list(map(Track, reader.names, joined)), reader.start_s, reader.remarks)


def seconds(path: str | Path) -> float:
    """Duration from the header of a file, which is read to its end where the header states none.

    Raises as `TrackReader`.
    """
    with open_audio(path) as reader:
        duration_s = reader.seconds or sum(len(block.samples) / block.rate_hz for block in reader.blocks())
        if not duration_s:
            raise ValueError("has no audio")
        return float(duration_s)
