"""Audio sent block by block to a stream: a recording, also at real-time pace, or live; and where segments end."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_client.stream import Stream
from penstock_common.audio.tracks import MIX, Channel, check_channel, read_mono
from penstock_common.errors import ClientError
from penstock_common.results import Result
from penstock_common.samples import SAMPLE_RATE_HZ, as_samples
from penstock_common.transcript import Transcript

_REALTIME_REQUEST_MS, _FILE_REQUEST_MS = 100.0, 1000.0
"""At full speed requests are long, because the server processes one after the other."""

Progress = Callable[[Transcript, Sequence[Result]], None]
"""Receives the transcript and the results, one or more, that were just added to it."""


def choose_request_ms(request_ms: float | None, is_realtime: bool) -> float:
    """The audio of one request: by default 100 ms at real-time pace, else 1000 ms."""
    if request_ms is not None:
        if not isinstance(request_ms, int | float):
            raise ValueError(f"request_ms is {request_ms!r}, expected a number")
        return request_ms
    return _REALTIME_REQUEST_MS if is_realtime else _FILE_REQUEST_MS


class Pacer:
    """Real-time pace by absolute deadlines: a late request does not delay the ones after it. Does not sleep."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._start_s = clock()

    def remaining_s(self, samples: int) -> float:
        """Seconds until the first `samples` samples would be complete, spoken from the start on; at least 0."""
        return max(0.0, self._start_s + samples / SAMPLE_RATE_HZ - self._clock())


class RequestSamples(NamedTuple):
    """The samples of one request."""

    samples: npt.NDArray[np.float32]
    """[n]"""
    end_samples: int
    """Samples of the recording up to the end of this block."""
    is_end: bool


class Recording:
    """The samples of a file, or mono samples [n] at 16 kHz, split into blocks of `request_ms`.

    `channel` is a file's. Raises AudioError for an unusable file, and ValueError for unsuitable arguments.
    """

    def __init__(self, audio: str | Path | npt.ArrayLike, request_ms: float, channel: Channel = MIX):
        self._block_samples = round(request_ms * SAMPLE_RATE_HZ / 1000)
        if self._block_samples < 1:
            raise ValueError(f"request_ms is {request_ms!r}, expected at least one sample")
        check_channel(channel)
        self.start_s = 0.0
        """The time of the first sample in the file."""
        if isinstance(audio, str | Path):
            self.samples, self.start_s = read_mono(audio, channel)
        else:
            self.samples = as_samples(audio)

    def __iter__(self) -> Iterator[RequestSamples]:
        """At least one block; the last may be shorter."""
        size = self.samples.size
        for start in range(0, max(1, size), self._block_samples):
            end = min(start + self._block_samples, size)
            yield RequestSamples(self.samples[start:end], end, end == size)


class SegmentEnds:
    """Ends the segments of one stream every `every_s` seconds of audio (None: never)."""

    def __init__(self, every_s: float | None = None):
        self._every_samples = None if every_s is None else max(1, round(every_s * SAMPLE_RATE_HZ))
        self._samples = 0
        """Samples of the current segment."""

    def send(self, stream: Stream, samples: npt.NDArray[np.float32], is_end: bool = False) -> None:
        """Sends samples [n]: `finalize` where a segment ends in them, `finish` for the stream's last samples.

        A segment that would end with the audio ends with the stream, so that no empty segment follows.
        """
        *ended, rest = self._split(samples)
        if is_end and ended and not rest.size:
            rest = ended.pop()
        for part in ended:
            stream.finalize(part)
        if is_end:
            stream.finish(rest)
        elif rest.size:
            stream.send(rest)

    def _split(self, samples: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        """Each part ends a segment, except the last, which may be empty and belongs to the segment that continues."""
        parts = []
        while self._every_samples is not None and self._samples + samples.size >= self._every_samples:
            border = self._every_samples - self._samples
            parts.append(samples[:border])
            samples, self._samples = samples[border:], 0
        self._samples += samples.size
        return [*parts, samples]


def play(stream: Stream, recording: Recording, pacer: Pacer | None, on_progress: Progress, ends: SegmentEnds) -> None:
    """Streams a recording up to its final text; a pacer keeps real-time pace. Raises ClientError."""
    for block in recording:
        while pacer and (wait_s := pacer.remaining_s(block.end_samples)) > 0:
            _report(stream, stream.poll(wait_s), on_progress)
        with _results_reported(stream, on_progress):
            ends.send(stream, block.samples, block.is_end)
        _report(stream, stream.poll(), on_progress)
    for result in stream:
        _report(stream, [result], on_progress)


class Voice(NamedTuple):
    """One of several channels that are streamed side by side."""

    stream: Stream
    on_progress: Progress
    ends: SegmentEnds


def dictate(
    voices: Sequence[Voice], blocks: Iterable[Sequence[npt.NDArray[np.float32]]], pacer: Pacer | None = None
) -> float:
    """Streams live blocks [n], one for each voice, until they end or until Ctrl-C, up to the final texts.

    Returns the seconds of audio. A pacer keeps real-time pace. A second Ctrl-C is raised, as is ClientError.
    """
    samples = 0
    try:
        for tracks in blocks:
            samples += tracks[0].size
            while pacer and (wait_s := pacer.remaining_s(samples)) > 0:
                for voice in voices:
                    _report(voice.stream, voice.stream.poll(wait_s / len(voices)), voice.on_progress)
            for voice, track in zip(voices, tracks, strict=True):
                with _results_reported(voice.stream, voice.on_progress):
                    voice.ends.send(voice.stream, track)
                _report(voice.stream, voice.stream.poll(), voice.on_progress)
    except KeyboardInterrupt:
        pass  # the user ends the audio with it
    for voice in voices:
        voice.stream.finish()
    for voice in voices:
        for result in voice.stream:
            _report(voice.stream, [result], voice.on_progress)
    return samples / SAMPLE_RATE_HZ


@contextmanager
def _results_reported(stream: Stream, on_progress: Progress) -> Iterator[None]:
    """Reports the results that came before a failure to send, too."""
    try:
        yield
    except ClientError:
        with suppress(ClientError):
            _report(stream, stream.poll(), on_progress)
        raise


def _report(stream: Stream, results: Sequence[Result], on_progress: Progress) -> None:
    if results:
        on_progress(stream.transcript, results)
