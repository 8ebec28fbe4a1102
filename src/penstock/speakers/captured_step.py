"""The step of live streams as CUDA graphs of a few batch sizes: one launch in place of some hundred.

As `penstock.encoder.captured_step`: rows that pad a batch use the state's last slot, which no stream has.
"""

import logging
from typing import NamedTuple

import torch

from penstock.graphs.program import CudaGraphError, Driver, EagerDriver, Program, Runner, prepare_or_run_eagerly
from penstock.speakers.diarizer import SpeakerSteps

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes: a row is 110 GFLOP in the published model, so padding costs more than graphs do."""

_log = logging.getLogger(__name__)


class _StepBucket(NamedTuple):
    mel: torch.Tensor
    """[B, L, 8 F] float32"""
    numbers: torch.Tensor
    """[4, B] int64: slots, and the counts of `StepRows`."""
    probabilities: torch.Tensor
    """[B, 8 L, K] float32"""
    program: Program
    run: Runner


class CapturedSpeakerStep:
    """Steps of a static window over `steps`, whose last slot is to spare."""

    def __init__(self, steps: SpeakerSteps, frames: int, size: int, driver: Driver):
        """frames: L of a row; size: of the window. Captures all batch sizes, the largest first, and resets the state.

        If a graph cannot be captured or computes something else, all steps run eagerly, with a warning. Raises
        DeviceLostError if the device cannot be used any more.
        """
        self._steps, self.frames, self._size = steps, frames, size
        self._spare = len(steps.cache.cached) - 1
        self.max_batch = min(self._spare, BUCKETS[-1])
        """Rows of one step."""
        driver = prepare_or_run_eagerly(self._prepare, driver, steps.cache.cached.device, "speakers")
        _log.info("CUDA graphs `%s`: the speaker step has %d batch sizes", driver.name, len(self._buckets))

    @torch.inference_mode()
    def __call__(self, mel: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Returns probabilities [B, 8 L, K] float32 of mel [B, L, 8 F] and numbers [4, B], B up to `max_batch`."""
        batch = len(mel)
        bucket = self._buckets[min(size for size in self._buckets if size >= batch)]
        bucket.mel[:batch].copy_(mel)
        bucket.numbers[:, :batch].copy_(numbers)
        self._pad(bucket.numbers, batch)
        bucket.run()
        return bucket.probabilities[:batch].clone()

    def _pad(self, numbers: torch.Tensor, batch: int) -> None:
        """Rows of one frame of look-ahead, which leave their slot as it is."""
        numbers[0, batch:].fill_(self._spare)
        numbers[1:3, batch:].zero_()
        numbers[3, batch:].fill_(1)

    @torch.inference_mode()
    def _prepare(self, driver: Driver) -> None:
        largest = next(size for size in BUCKETS if size >= self.max_batch)
        sizes = reversed(BUCKETS[: BUCKETS.index(largest) + 1])
        self._buckets = {size: self._bucket(size, driver) for size in sizes}
        if not isinstance(driver, EagerDriver):
            self._check()
        self._steps.cache.reset(torch.arange(self._spare + 1, device=self._steps.cache.cached.device))

    def _bucket(self, size: int, driver: Driver) -> _StepBucket:
        config, device = self._steps.network.config, self._steps.cache.cached.device
        factor = config.subsampling_factor
        mel = torch.zeros(size, self.frames, factor * config.features.mel_bins, device=device)
        numbers = torch.zeros(4, size, dtype=torch.int64, device=device)
        probabilities = torch.zeros(size, factor * self.frames, config.speakers, device=device)

        def step() -> None:
            probabilities.copy_(self._steps.step_of_mel(mel, numbers, self._size))

        program = Program(torch.zeros(1, dtype=torch.bool, device=device), (step,))
        self._pad(numbers, 0)
        return _StepBucket(mel, numbers, probabilities, program, driver.prepare(program))

    def _check(self) -> None:
        """Raises CudaGraphError if the smallest graph does not compute the eager step, from the same state."""
        bucket = self._buckets[BUCKETS[0]]
        generator = torch.Generator(bucket.mel.device).manual_seed(0)
        bucket.mel.normal_(generator=generator)
        found = []
        for run in (bucket.run, EagerDriver().prepare(bucket.program)):
            self._steps.cache.reset(bucket.numbers[0])
            bucket.numbers[2:].fill_(self.frames)
            run()
            run()
            found.append(bucket.probabilities.clone())
        if not torch.equal(*found):
            raise CudaGraphError("a step differs from the eager one")
