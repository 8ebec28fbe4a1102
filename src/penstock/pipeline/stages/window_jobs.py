"""Jobs of the window encoder: which streams are encoded together, and which job works next. Independent of tickets.

A job is one generator over the log-mel of one or more streams. Work is cut between its yields, so that a call takes no
longer than a step, and a short file does not wait for a long one.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from penstock.encoder.window.attention import Band
from penstock.encoder.window.run import WindowEncoder
from penstock.pipeline.windows import BATCH_AUDIO_S, ENCODING_SHARE, band_of
from penstock.runtime import check_device_works, trim_heap

STEP_S = 0.25
"""Encoder work of one call."""
_OLDEST_TURNS = 4
"""The shortest job works, and at each of these turns the oldest one: so no job waits for ever."""
_TRIMMED_S = 600.0  # audio of a job whose memory is returned to the system


@dataclass(eq=False)
class WindowFile:
    """A stream in the encoder."""

    slot: int
    generation: int
    pieces: list[torch.Tensor] = field(default_factory=list)
    """Log-mel [n, F] that has come; the job empties it."""
    mel_frames: int = 0
    samples: int = 0
    """All of the stream, once its log-mel is complete."""
    band: Band | None = None
    job: "Job | None" = None
    frames: torch.Tensor | None = None
    """[T, D], the encoder's result."""
    emitted: int = 0
    """Frames that have left."""

    @property
    def frames_left(self) -> int:
        """Encoder frames that can leave now."""
        return 0 if self.frames is None else len(self.frames) - self.emitted

    def emit(self, most: int) -> torch.Tensor:
        """Returns the next frames [n, D] float32, at most `most`."""
        assert self.frames is not None
        part = self.frames[self.emitted : self.emitted + most].float()
        self.emitted += len(part)
        return part

    @property
    def is_done(self) -> bool:
        """True when all frames have left."""
        return self.frames is not None and not self.frames_left

    @property
    def progress(self) -> float:
        """Share of the work that is done, 0 .. 1."""
        if self.frames is not None:
            return ENCODING_SHARE + (1 - ENCODING_SHARE) * self.emitted / len(self.frames)
        return 0.0 if self.job is None else ENCODING_SHARE * self.job.progress


class Job:
    """Streams that are encoded together."""

    def __init__(self, encoder: WindowEncoder, files: Sequence[WindowFile]):
        self.files = files
        self.mel_frames = sum(file.mel_frames for file in files)
        self._steps = encoder.run([file.pieces for file in files], [file.band for file in files])
        self.progress = 0.0
        """Share of the work that is done, 0 .. 1."""
        self.longest_s = 0.0
        """The longest work between two yields."""
        for file in files:
            file.job = self

    def advance(self, clock: Callable[[], float], device: torch.device) -> bool:
        """Works until the next yield; returns True once the files have their frames. Raises what torch raises."""
        begin = clock()
        try:
            self.progress = next(self._steps)
            if device.type == "cuda":  # else work would only queue up
                torch.cuda.synchronize(device)
        except StopIteration as finished:
            for file, frames in zip(self.files, finished.value, strict=True):
                file.frames = frames
            return True
        finally:
            self.longest_s = max(self.longest_s, clock() - begin)
        return False

    def close(self) -> None:
        """Frees all that the job holds."""
        self._steps.close()
        for file in self.files:
            file.pieces.clear()
            file.job = None


class JobQueue:
    """The jobs of a server: the shortest works first, and now and then the oldest."""

    def __init__(
        self, encoder: WindowEncoder, device: torch.device, hop_ms: float, clock: Callable[[], float] = time.monotonic
    ):
        self._encoder, self._device, self._clock = encoder, device, clock
        self._batch_mel_frames = int(1000 * BATCH_AUDIO_S / hop_ms)
        self._trimmed_mel_frames = int(1000 * _TRIMMED_S / hop_ms)
        self._turn = 0
        self.jobs: list[Job] = []
        """Unfinished ones, oldest first."""

    def band(self, is_local: bool) -> Band | None:
        """What the frames of a stream attend to."""
        return band_of(is_local, self._encoder.band)

    def add(self, files: Iterable[WindowFile]) -> None:
        """Takes streams whose log-mel is complete: those that come together are encoded together, long ones alone."""
        batch: list[WindowFile] = []
        for file in files:
            if batch and sum(each.mel_frames for each in batch) + file.mel_frames > self._batch_mel_frames:
                self._start(batch)
                batch = []
            batch.append(file)
        if batch:
            self._start(batch)

    def _start(self, files: Sequence[WindowFile]) -> None:
        self.jobs.append(Job(self._encoder, files))

    def drop(self, is_live: Callable[[WindowFile], bool]) -> None:
        """Ends the jobs of which no stream is live."""
        for job in [job for job in self.jobs if not any(map(is_live, job.files))]:
            self._end(job)

    def advance(self) -> list[tuple[Job, Exception]]:
        """Works for at most `STEP_S`, unless a single block takes longer; returns the jobs that failed, and why.

        Raises DeviceLostError if no later work can succeed.
        """
        failed: list[tuple[Job, Exception]] = []
        begin, has_worked = self._clock(), False
        while self.jobs:
            job = self._next()
            if has_worked and self._clock() - begin + job.longest_s > STEP_S:
                break
            has_worked = True
            self._turn += 1
            try:
                if job.advance(self._clock, self._device):
                    self._end(job)
            except Exception as error:  # noqa: BLE001  of whatever kind: a job that stayed would fail each later call
                check_device_works(self._device, error)
                failed.append((job, error))
                self._end(job)
        return failed

    def _next(self) -> Job:
        if self._turn % _OLDEST_TURNS == _OLDEST_TURNS - 1:
            return self.jobs[0]
        return min(self.jobs, key=lambda job: job.mel_frames)

    def _end(self, job: Job) -> None:
        self.jobs.remove(job)
        job.close()
        if job.mel_frames > self._trimmed_mel_frames:
            trim_heap()
