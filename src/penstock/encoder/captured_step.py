"""The encoder step as CUDA graphs of a few batch sizes: a step costs one launch, however deep the network is.

A batch is padded to the smallest bucket that holds it. Padding rows have no audio, and all use the state's last slot,
which no stream has: writes to it race, and nothing reads it.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import Encoded
from penstock.graphs.program import CudaGraphError, Driver, EagerDriver, Program, Runner, prepare_or_run_eagerly

BUCKETS = (64, 128, 256, 512, 1024)
"""Batch sizes."""
_CHECKED_STEPS = 2
"""The second one reads what the first one has written."""

_log = logging.getLogger(__name__)

Network = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Encoded]
"""One step as `TorchStep.__call__`."""


class _Bucket(NamedTuple):
    """One batch size, with the memory of its inputs and outputs."""

    slots: torch.Tensor
    """[B] int64"""
    mel: torch.Tensor
    """[B, N, F] float32"""
    valid_mel_frames: torch.Tensor
    """[B] int64"""
    encoded: Encoded
    program: Program
    run: Runner


class CapturedStep:
    """Runs the step of a network over `state`, whose last slot is to spare, with a driver.

    Nothing is captured later, and only the buckets' batch sizes ever run, so that libraries plan nothing while serving.
    """

    def __init__(self, network: Network, state: EncoderState, driver: Driver):
        """Captures the step for each bucket that the state's slots can need, the largest first, and resets the state.

        If a graph cannot be captured or differs in a bit from the network's own step, all steps run eagerly, with a
        warning. Raises DeviceLostError if the device cannot be used any more.
        """
        self._network, self._state = network, state
        self._spare = state.slots - 1
        last = next((size for size in BUCKETS if size >= self._spare), BUCKETS[-1])
        self.max_batch = min(self._spare, last)
        """Rows of one step."""
        sizes = [size for size in reversed(BUCKETS) if size <= last]
        prepare = partial(self._prepare, sizes)
        driver = prepare_or_run_eagerly(prepare, driver, state.chunks_seen.device, "encoder")
        state.clear()
        _log.info("CUDA graphs `%s`: the encoder step has %d batch sizes", driver.name, len(sizes))
        self.driver_name = driver.name
        """CUDA graph mode of the steps, for the log."""

    @torch.inference_mode()
    def __call__(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """Does `StreamingEncoder.step` for 1 .. `max_batch` rows."""
        batch = len(slots)
        bucket = self._buckets[min(size for size in self._buckets if size >= batch)]
        bucket.slots[:batch].copy_(slots)
        bucket.slots[batch:].fill_(self._spare)
        bucket.mel[:batch].copy_(mel)
        bucket.valid_mel_frames[:batch].copy_(valid_mel_frames)
        bucket.valid_mel_frames[batch:].zero_()
        bucket.run()
        return Encoded(*(values[:batch].clone() for values in bucket.encoded))

    @torch.inference_mode()
    def _prepare(self, sizes: list[int], driver: Driver) -> None:
        """Makes the buckets. Overwrites the state. Raises CudaGraphError where a graph is not the network's step."""
        self._buckets: dict[int, _Bucket] = {}
        for size in sizes:
            bucket = self._bucket(size, driver)
            if not isinstance(driver, EagerDriver):
                self._check(bucket)
            self._buckets[size] = bucket

    def _bucket(self, size: int, driver: Driver) -> _Bucket:
        state, config = self._state, self._state.config
        device, frames = state.chunks_seen.device, state.context.chunk_encoder_frames
        slots = torch.full((size,), self._spare, device=device)
        mel = torch.zeros(size, config.subsampling_factor * frames, config.mel_bins, device=device)
        valid = torch.zeros_like(slots)
        encoded = Encoded(
            torch.zeros(size, frames, config.d_model, device=device, dtype=state.conv_tails.dtype),
            torch.zeros_like(slots),
        )

        def step() -> None:
            result = self._network(slots, mel, valid)
            encoded.frames.copy_(result.frames)
            encoded.valid_encoder_frames.copy_(result.valid_encoder_frames)

        program = Program(torch.zeros(1, dtype=torch.bool, device=device), (step,))
        return _Bucket(slots, mel, valid, encoded, program, driver.prepare(program))

    def _check(self, bucket: _Bucket) -> None:
        """Runs the graph and the network's own step, each from the same random state; CudaGraphError if they differ.

        Waits for the device. The states need no copy: a seed gives them twice.
        """
        eager = EagerDriver().prepare(bucket.program)
        expected, found = (self._run_randomly(bucket, run) for run in (eager, bucket.run))
        if not torch.equal(found, expected):
            raise CudaGraphError(f"a step of {len(bucket.slots)} rows differs from the eager one")

    def _run_randomly(self, bucket: _Bucket, run: Runner) -> torch.Tensor:
        """Returns the frames [steps, B, T, D] of streams in a state of random values, the same in every call."""
        state, rows = self._state, min(len(bucket.slots), self._spare)
        generator = torch.Generator(state.chunks_seen.device).manual_seed(rows)
        for values in (state.conv_tails, state.kv_pages, *state.subsampling_columns):
            values.normal_(generator=generator)
        state.chunks_seen.random_(2 * state.pages_per_slot, generator=generator)
        bucket.slots.fill_(self._spare)
        bucket.slots[:rows].copy_(torch.arange(rows - 1, -1, -1, device=bucket.slots.device))
        frames = []
        for _ in range(_CHECKED_STEPS):
            bucket.mel.normal_(generator=generator)
            bucket.valid_mel_frames.random_(bucket.mel.shape[1] + 1, generator=generator)
            bucket.valid_mel_frames[rows:].zero_()
            run()
            frames.append(bucket.encoded.frames[:rows].clone())
        return torch.stack(frames)
