"""Jobs of the window encoder: which windows are encoded together, and which job works next. Independent of tickets.

A job is one generator over the log-mel of one or more windows. A file is one window, a live stream has one after
another. Work is cut between the generator's yields, so that a call takes no longer than a step, live windows do not
wait for files, and short files not for long ones.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from penstock.encoder.window.attention import Band, Chunks, Reach
from penstock.encoder.window.encoder import WindowEncoder
from penstock.pipeline.options.windows import LiveWindow, band_of, batch_audio_s
from penstock.runtime import check_device_works, trim_heap

STEP_S = 0.25
"""Encoder work of one call."""
_OLDEST_TURNS = 4
"""A live job works, else the shortest, and at each of these turns the oldest one: so no job waits for ever."""
_ENCODING_SHARE = 0.9  # about this share of the work; the rest is decoding
_TRIMMED_S = 600.0  # audio of a job whose memory is returned to the system


class WholeFiles(NamedTuple):
    """Settings of a process that has nothing but whole files: no stream waits for another one's work.

    Files that come together are packed together, however long each is on its way.
    """

    batch_audio_s: float
    """Audio of one job."""
    attention: tuple[Band | None] | None = None
    """Reach of all frames' attention; None for the checkpoint's choice."""


@dataclass(eq=False)
class Window:
    """Log-mel that is encoded at once."""

    file: "WindowFile"
    band: Reach | None
    """Reach of its frames' attention."""
    pieces: list[torch.Tensor]
    """Log-mel [n, F]; the job empties it."""
    wanted: slice | None = None
    """The frames that go on to the decoder: of a live stream a chunk, without its context; None for all."""
    mel_frames: int = field(init=False)
    job: "Job | None" = None
    frames: torch.Tensor | None = None
    """[T, D], the encoder's result, those wanted."""
    emitted: int = 0
    """Frames that have left."""
    ends: tuple[int, int] | None = None
    """In place of log-mel: a segment ends here. The samples of the stream before it, and the number of its request."""

    def __post_init__(self) -> None:
        self.mel_frames = sum(map(len, self.pieces))
        if self.ends is not None:
            self.frames = torch.zeros(0)

    @property
    def is_live(self) -> bool:
        """True for a window of a live stream."""
        return self.file.live is not None

    @property
    def progress(self) -> float:
        """Share of the work that is done, 0 .. 1."""
        if self.frames is not None:
            return _ENCODING_SHARE + (1 - _ENCODING_SHARE) * self.emitted / len(self.frames)
        return 0.0 if self.job is None else _ENCODING_SHARE * self.job.progress


@dataclass(eq=False)
class WindowFile:
    """A stream in the encoder."""

    slot: int
    generation: int
    live: LiveWindow | None = None
    """None for a file."""
    pieces: list[torch.Tensor] = field(default_factory=list)
    """Log-mel [n, F] of a file that is not complete."""
    samples: int = 0
    """All of the stream, once its log-mel is complete; 0 before."""
    windows: deque[Window] = field(default_factory=deque)
    """Windows that are not encoded, or whose frames have not all left; oldest first."""
    due_samples: int = 0
    """Samples whose words are due: of a live stream those whose windows have come, of a file all once it has ended."""
    cut: int = 0
    """Windows of a live stream's segments since they began anew, at sample `origin`; before: `cut_before`."""
    cut_before: int = 0
    origin: int = 0
    emitted: int = 0
    """Frames that have left since then."""

    def collect(self, mel: torch.Tensor, band: Reach | None, mel_per_frame: int, samples: int) -> list[Window]:
        """Takes log-mel [n, F]; returns the windows that are complete with it.

        samples: all of the stream if its log-mel is complete with this, else 0. mel_per_frame: mel frames to one
        encoder frame.
        """
        windows = []
        if self.live is None:
            if len(mel):
                self.pieces.append(mel)
            if samples and not self.samples:
                windows = [Window(self, band, self.pieces)]
        else:
            while len(mel):
                begin, new = self.live.begin(self.cut), self.cut * self.live.chunk
                size = mel_per_frame * (self.live.end(self.cut) - begin)
                end = new - begin + self.live.chunk if len(mel) >= size else None  # the last one has no end
                windows.append(Window(self, band, [mel[:size]], slice(new - begin, end)))
                mel, self.cut = mel[size:], self.cut + 1
        self.samples = self.samples or samples
        self.windows += windows
        return windows

    @property
    def encoded_windows(self) -> int:
        """Windows of a live stream that are encoded."""
        return self.cut_before + self.cut - sum(window.frames is None for window in self.windows)

    def end_segment(self, samples: int, number: int) -> None:
        """Windows begin anew after this many samples of the stream: FINALIZE in its request of this number."""
        self.windows.append(Window(self, None, [], ends=(samples, number)))
        self.cut_before, self.cut = self.cut_before + self.cut, 0

    def pop_segment_end(self, number: int) -> bool:
        """Returns True if a segment's end comes next, and removes it; number: that of the request that leaves."""
        # Not with an earlier request: options that change with the end are in the ticket of this one.
        if not self.windows or (ends := self.windows[0].ends) is None or number < ends[1]:
            return False
        self.windows.popleft()
        self.origin, self.emitted = ends[0], 0
        return True

    @property
    def frames_left(self) -> int:
        """Encoder frames that can leave now."""
        count = 0
        for window in self.windows:
            if window.frames is None or window.ends is not None:
                break
            count += len(window.frames) - window.emitted
        return count

    def emit(self, count: int) -> torch.Tensor:
        """Returns the next frames [n, D] float32, n = count, which is positive and at most `frames_left`."""
        self.emitted += count
        parts = []
        while count:
            window = self.windows[0]
            assert window.frames is not None
            parts.append(window.frames[window.emitted : window.emitted + count].float())
            window.emitted += len(parts[-1])
            count -= len(parts[-1])
            if window.emitted == len(window.frames):
                self.windows.popleft()
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @property
    def is_done(self) -> bool:
        """True when all frames have left."""
        return self.samples > 0 and not self.windows

    @property
    def progress(self) -> float:
        """Share of a file's work that is done, 0 .. 1."""
        return self.windows[0].progress if self.windows else 0.0


class Job:
    """Windows that are encoded together."""

    def __init__(self, encoder: WindowEncoder, windows: Sequence[Window]):
        self.windows = windows
        self.is_live = any(window.is_live for window in windows)
        self.mel_frames = sum(window.mel_frames for window in windows)
        self._steps = encoder.run([window.pieces for window in windows], [window.band for window in windows])
        self.progress = 0.0
        """Share of the work that is done, 0 .. 1."""
        self.longest_s = 0.0
        """The longest work between two yields."""
        for window in windows:
            window.job = self

    def advance(self, clock: Callable[[], float], device: torch.device | None) -> bool:
        """Works until the next yield; returns True once the windows have their frames. Raises what torch raises.

        device: a GPU whose work is awaited, else it would only queue up.
        """
        begin = clock()
        try:
            self.progress = next(self._steps)
            if device is not None:
                torch.cuda.synchronize(device)
        except StopIteration as finished:
            for window, frames in zip(self.windows, finished.value, strict=True):
                # A copy of a chunk, not a view of the whole strip.
                window.frames = frames if window.wanted is None else frames[window.wanted].clone()
            return True
        finally:
            self.longest_s = max(self.longest_s, clock() - begin)
        return False

    def close(self) -> None:
        """Frees all that the job holds."""
        self._steps.close()
        for window in self.windows:
            # Windows stay until their frames have left, but need their log-mel no more.
            window.pieces.clear()
            window.job = None


class JobQueue:
    """The jobs of a server: live ones work first, then the shortest, and now and then the oldest."""

    def __init__(
        self, encoder: WindowEncoder, device: torch.device, hop_ms: float, whole_files: WholeFiles | None = None
    ):
        """whole_files: of a process without other work; on a GPU a call then ends with its jobs."""
        self._encoder, self._device, self._whole_files = encoder, device, whole_files
        self._clock = time.monotonic
        audio_s = batch_audio_s(device.type) if whole_files is None else whole_files.batch_audio_s
        self._batch_mel_frames = int(1000 * audio_s / hop_ms)
        self._is_paced = device.type == "cpu" or whole_files is None
        self._trimmed_mel_frames = int(1000 * _TRIMMED_S / hop_ms)
        self._turn = 0
        self.jobs: list[Job] = []
        """Unfinished ones, oldest first."""

    def band(self, is_local: bool, live: LiveWindow | None = None) -> Reach | None:
        """Reach of attention for the frames of a stream."""
        if live is not None and self._encoder.config.live_menu is not None:
            return Chunks(*live)
        if self._whole_files is not None and self._whole_files.attention is not None:
            return self._whole_files.attention[0]
        return band_of(is_local, self._encoder.band)

    def add(self, windows: Iterable[Window]) -> None:
        """Takes windows whose log-mel is complete: those that come together are encoded together, long ones alone.

        A file is encoded with live windows only if it is no longer than one of them.
        """
        batch: list[Window] = []
        for window in sorted(windows, key=lambda one: not one.is_live):
            total = sum(each.mel_frames for each in batch) + window.mel_frames
            is_alike = not batch or not batch[0].is_live or window.mel_frames <= max(one.mel_frames for one in batch)
            if batch and (total > self._batch_mel_frames or not (is_alike or window.is_live)):
                self._start(batch)
                batch = []
            batch.append(window)
        if batch:
            self._start(batch)

    def _start(self, windows: Sequence[Window]) -> None:
        self.jobs.append(Job(self._encoder, windows))

    def drop(self, is_open: Callable[[WindowFile], bool]) -> None:
        """Ends the jobs of which no stream is open."""
        for job in [job for job in self.jobs if not any(is_open(window.file) for window in job.windows)]:
            self._end(job)

    def advance(self) -> list[tuple[Job, Exception]]:
        """Works for at most `STEP_S`, unless a single block takes longer; returns the jobs that failed, and why.

        Ends once there are no more live windows: their frames leave at the call's end. Raises DeviceLostError if no
        later work can succeed.
        """
        failed: list[tuple[Job, Exception]] = []
        begin, has_worked = self._clock(), False
        has_live = any(job.is_live for job in self.jobs)
        while self.jobs and has_live == any(job.is_live for job in self.jobs):
            job = self._next()
            if has_worked and self._is_paced and self._clock() - begin + job.longest_s > STEP_S:
                break
            has_worked = True
            self._turn += 1
            try:
                if job.advance(self._clock, self._device if self._is_paced and self._device.type == "cuda" else None):
                    self._end(job)
            except Exception as error:  # noqa: BLE001  of whatever kind: a job that stayed would fail each later call
                check_device_works(self._device, error)
                failed.append((job, error))
                self._end(job)
        return failed

    def _next(self) -> Job:
        if self._turn % _OLDEST_TURNS == _OLDEST_TURNS - 1:
            return self.jobs[0]
        return min(self.jobs, key=lambda job: 0 if job.is_live else job.mel_frames)

    def _end(self, job: Job) -> None:
        self.jobs.remove(job)
        job.close()
        if job.mel_frames > self._trimmed_mel_frames:
            trim_heap()
