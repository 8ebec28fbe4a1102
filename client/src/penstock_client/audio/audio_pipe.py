"""Audio from a pipe while it arrives: WAV or raw samples, from standard input, a FIFO or a device."""

import contextlib
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock_common.audio.pcm import Block, PcmStream, RawFormat, Remark, read_wav_header
from penstock_common.audio.sound_file import STDIN
from penstock_common.audio.tracks import EACH, MIX, Audio, Channel, TrackMaker, check_channel, load, naming
from penstock_common.errors import AudioError
from penstock_common.samples import SAMPLE_RATE_HZ

_MIN_BLOCK_MS, _MAX_BLOCK_MS = 100.0, 1000.0
_QUIET_S = 0.1
_READ_BYTES = 65_536


def is_pipe(path: str | Path) -> bool:
    """True for what cannot be read as a file, such as a pipe: `-`, a FIFO or a device."""
    try:
        mode = os.fstat(0).st_mode if str(path) == STDIN else os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


class AudioPipe:
    """Iterates over blocks [n] of mono samples at 16 kHz, float32, as they arrive at `path`; `-` is standard input.

    A block has `block_ms` of audio. By default it has what has arrived: at least 100 ms, at most 1 s. It is empty if
    nothing arrives for 100 ms, so that the caller can look at results. Without `raw` the audio is a WAV file; other
    formats are read to their end first. Raises AudioError, also for a pipe without audio, and on Windows. Use as a
    context manager.
    """

    def __init__(
        self,
        path: str | Path = STDIN,
        raw: RawFormat | None = None,
        channel: Channel = MIX,
        block_ms: float | None = None,
    ):
        check_channel(channel)
        self._path = path
        self._raw = raw
        self._channel = channel
        self._block_ms = (block_ms, block_ms) if block_ms else (_MIN_BLOCK_MS, _MAX_BLOCK_MS)
        self._bytes = _Bytes(path)
        self._pcm: PcmStream | None = None
        self._maker: TrackMaker | None = None
        self._audio: Audio | None = None
        """All tracks of a format that cannot be streamed."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"

    @property
    def remarks(self) -> list[Remark]:
        """After the iteration: where samples are missing, and whether the channels cancel in their mix."""
        if self._audio is not None:
            return self._audio.remarks
        return [*self._pcm.remarks, *self._maker.remarks] if self._pcm and self._maker else []

    @property
    def start_s(self) -> float:
        """The time of the first sample in a file that was read to its end; known with `names`."""
        return 0.0 if self._audio is None else self._audio.start_s

    def __iter__(self) -> Iterator[npt.NDArray[np.float32]]:
        if self._channel == EACH:
            raise ValueError("channel is 'each', which gives several tracks: use blocks")
        return (track for (track,) in self.blocks())

    def names(self) -> list[str | None]:
        """The name of every channel with channel "each", else one None. Waits for the header of the audio."""
        self._start()
        if self._audio is not None:
            return [track.channel for track in self._audio.tracks]
        assert self._maker is not None
        return self._maker.names

    def blocks(self) -> Iterator[list[npt.NDArray[np.float32]]]:
        """The blocks [n] of each track, side by side."""
        self._start()
        if self._audio is not None:
            tracks = [track.samples for track in self._audio.tracks]
            size = round(self._block_ms[1] * SAMPLE_RATE_HZ / 1000)
            for start in range(0, len(tracks[0]), size):
                yield [samples[start : start + size] for samples in tracks]
            return
        assert self._pcm is not None and self._maker is not None
        for block in self._frames(self._pcm):
            with naming(self._path):
                yield self._maker.push(block)
        if not self._maker.has_samples:
            raise AudioError(self._path, "has no audio")
        if rests := self._maker.flush():
            yield rests

    def close(self) -> None:
        """Closes the pipe."""
        self._bytes.close()

    def __enter__(self) -> "AudioPipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Reads the header, once; all audio of a format that cannot be streamed."""
        if self._pcm is not None or self._audio is not None:
            return
        with naming(self._path):
            header = None
            with contextlib.suppress(ValueError):  # FFmpeg may read what has a broken header
                header = None if self._raw else read_wav_header(self._bytes.peek)
            if self._raw is None and header is None:
                self._audio = load(self._bytes.rest(), SAMPLE_RATE_HZ, self._channel)
                return
            self._pcm = PcmStream(self._raw)
            if header is not None:
                self._pcm.push(self._bytes.read(header[1], header[1])[0])
            assert self._pcm.format is not None
            self._maker = TrackMaker(self._pcm.format.channels, SAMPLE_RATE_HZ, self._channel, is_live=True)

    def _frames(self, pcm: PcmStream) -> Iterator[Block]:
        """The samples of each block; none of a part that is no audio."""
        form = pcm.format
        assert form is not None
        minimum, maximum = (max(1, round(ms * form.sample_rate_hz / 1000)) * form.frame_bytes for ms in self._block_ms)
        is_end = False
        while not is_end:
            data, is_end = self._bytes.read(minimum, maximum)
            with naming(self._path):
                blocks = pcm.push(data, is_end)
            form = pcm.format or form  # of a second file
            yield from blocks or [Block(form.sample_rate_hz, np.zeros((0, form.channels), np.float32))]


class _Bytes:
    """The bytes of a pipe, as they arrive."""

    def __init__(self, path: str | Path):
        if os.name == "nt":  # which cannot wait for a pipe
            raise AudioError(path, "pipes are not supported on Windows: give a file")
        self._is_stdin = str(path) == STDIN
        try:
            self._descriptor = 0 if self._is_stdin else os.open(path, os.O_RDONLY)
        except OSError as error:
            raise AudioError(path, (error.strerror or str(error)).lower()) from error
        if os.isatty(self._descriptor):
            self.close()
            raise AudioError(path, "is a terminal: pipe audio into it")
        self._path = path
        self._buffer = b""
        self._is_end = False

    def read(self, minimum: int, maximum: int) -> tuple[bytes, bool]:
        """`minimum` to `maximum` of the bytes that have arrived, and whether they are the last ones.

        Less at the end, none while none arrive.
        """
        minimum = min(minimum, maximum)
        while len(self._buffer) < maximum and not self._is_end:
            has_enough = len(self._buffer) >= minimum
            if not select.select([self._descriptor], [], [], 0.0 if has_enough else _QUIET_S)[0]:  # a read would block
                if not has_enough:
                    return b"", False
                break
            self._read()
        data, self._buffer = self._buffer[:maximum], self._buffer[maximum:]
        return data, self._is_end and not self._buffer

    def peek(self, start: int, size: int) -> bytes:
        """The next `size` bytes after the first `start`; less at the end. All remain in front."""
        while len(self._buffer) < start + size and not self._is_end:
            self._read()
        return self._buffer[start : start + size]

    def rest(self) -> bytes:
        """All bytes to the end."""
        parts = [self._buffer]
        self._buffer = b""
        while not self._is_end:
            self._read()
            parts.append(self._buffer)
            self._buffer = b""
        return b"".join(parts)

    def close(self) -> None:
        """Closes the pipe, except standard input."""
        if not self._is_stdin:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError as error:
            raise AudioError(self._path, (error.strerror or str(error)).lower()) from error
        self._buffer += data
        self._is_end = not data
