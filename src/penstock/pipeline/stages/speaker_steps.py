"""Frames of streams that wait for a step of a speaker model, and the steps of all streams that have enough."""

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_host
from penstock.graphs.program import Driver
from penstock.pipeline.memory.speaker_memory import MAX_STEP_ROWS
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.runtime import check_device_works, send_to_device
from penstock.speakers.bundle import SpeakerConfig, StepSize
from penstock.speakers.captured_step import CapturedStep
from penstock.speakers.diarizer import SpeakerSteps
from penstock.speakers.network import SpeakerNetwork

FILE = "file"
"""The mode with the steps of whole recordings."""


def step_sizes(config: SpeakerConfig) -> dict[str, StepSize]:
    """Of each mode, the default first."""
    return {**config.live_steps, FILE: config.file_step}


class StreamSteps:
    """S streams, each with a mode. A step has streams of all ages, and all live modes."""

    def __init__(self, network: SpeakerNetwork, slots: int, driver: Driver | None = None):
        """driver: captures the step of live streams; without one all steps run as they are."""
        config = network.config
        self._config, self._sizes = config, step_sizes(config)
        queue = max(config.live_queue, config.file_queue)
        # One slot more for the rows that pad a captured step.
        self._steps = SpeakerSteps(network, queue, slots + (driver is not None))
        self._device = network.silence.device
        longest = max(map(sum, self._sizes.values()))
        self._live_frames = max(map(sum, config.live_steps.values()))
        width = config.subsampling_factor * config.features.mel_bins
        self._mel = np.zeros((slots, longest, width), np.float32)
        """[S, L, 8 F], look-back, chunk and look-ahead; memory is taken when a stream needs it."""
        self._filled, self._left, self._mode = np.zeros((3, slots), np.int64)  # [S]; frames, of the look-back
        self._table = np.array([tuple(size) for size in self._sizes.values()])  # [modes, 3]
        self._captured: CapturedStep | None = None
        if driver is not None:
            size = config.cache.frames + config.live_queue.frames + self._live_frames
            self._captured = CapturedStep(self._steps, self._live_frames, size, driver)
        self.steps = self.rows = 0
        """Steps, and the chunks of streams in them."""

    @property
    def network(self) -> SpeakerNetwork:
        """Of all streams."""
        return self._steps.network

    @torch.inference_mode()
    def open(self, slot: int, mode: str) -> None:
        """Makes `slot` a new stream."""
        queue = self._config.file_queue if mode == FILE else self._config.live_queue
        self._steps.cache.reset(torch.tensor([slot], device=self._device), queue)
        self._filled[slot] = self._left[slot] = 0
        self._mel[slot, : None if mode == FILE else self._live_frames] = 0.0  # no padding with what made others NaN
        self._mode[slot] = list(self._sizes).index(mode)

    @torch.inference_mode()
    def advance(self, slots: np.ndarray, frames: list[np.ndarray], is_end: np.ndarray) -> list[np.ndarray | str]:
        """Gives different streams `slots` [n] their next log-mel frames, in eights [k, 8 F], and runs their steps.

        is_end: [n] bool, no more will come. Returns for each the probabilities [8 c, K] float32 of the c frames that
        are decided now, or why the stream is lost. Raises DeviceLostError if no later step can succeed.
        """
        found: list[list[np.ndarray]] = [[np.zeros((0, self._config.speakers), np.float32)] for _ in slots]
        lost: dict[int, str] = {}
        taken = np.zeros(len(slots), np.int64)
        counts = np.array(list(map(len, frames)))
        while True:
            # 1) each stream takes as many frames as one step needs
            room = np.minimum(self._table[self._mode[slots]].sum(axis=1) - self._filled[slots], counts - taken)
            for row in room.nonzero()[0].tolist():
                slot, start, count = slots[row], taken[row], room[row]
                self._mel[slot, self._filled[slot] :][:count] = frames[row][start : start + count]
            self._filled[slots] += room
            taken += room
            # 2) those that have enough, live ones first
            chunk, right = self._plan(slots, is_end & (taken == counts))
            chunk[list(lost)] = 0
            ready = chunk.nonzero()[0]
            if not len(ready):
                return [lost.get(row, np.concatenate(found[row])) for row in range(len(slots))]
            are_files = self._are_files(slots[ready])
            for rows, captured in ((ready[~are_files], self._captured), (ready[are_files], None)):
                most = MAX_STEP_ROWS if captured is None else captured.max_batch
                for part in np.split(rows, range(most, len(rows), most)):
                    if len(part):
                        self._run(part, slots[part], chunk[part], right[part], captured, found, lost)

    def _plan(self, slots: np.ndarray, is_over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chunk and look-ahead [n] of the next step of each stream; chunk 0 where frames are missing."""
        chunk, right, _ = self._table[self._mode[slots]].T.copy()
        waiting = self._filled[slots] - self._left[slots]
        is_full = waiting >= chunk + right
        # The last frames of a live stream are one chunk: all of them together are no more than chunk and look-ahead.
        last = np.where(self._are_files(slots), np.minimum(chunk, waiting), waiting)
        right = np.where(is_full, right, waiting - last)
        return np.where(is_full, chunk, np.where(is_over, last, 0)), right

    def _are_files(self, slots: np.ndarray) -> np.ndarray:
        """[n] bool, of streams."""
        return self._mode[slots] == len(self._sizes) - 1

    def _run(
        self, rows: np.ndarray, slots: np.ndarray, chunk: np.ndarray, right: np.ndarray, captured: CapturedStep | None,
        found: list[list[np.ndarray]], lost: dict[int, str],
    ) -> None:  # fmt: skip
        """Runs a step of different streams [B], live ones or files, and moves their frames on.

        captured: the step, unless it runs as it is.
        """
        left, factor = self._left[slots], self._config.subsampling_factor
        lengths = left + chunk + right
        numbers = send_to_device(torch.from_numpy(np.array([slots, left, chunk, lengths])), self._device)
        frames, step = (lengths.max(), self._steps.step_of_mel) if captured is None else (captured.frames, captured)
        try:
            mel = send_to_device(torch.from_numpy(self._mel[slots, :frames]), self._device)
            probabilities = copy_to_host(step(mel, numbers)).numpy()  # waits for the device, which reports errors here
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            lost |= dict.fromkeys(rows.tolist(), f"the speaker model failed: {error}")
            return
        self.steps, self.rows = self.steps + 1, self.rows + len(rows)
        kept = np.minimum(left + chunk, self._table[self._mode[slots], 2])
        for row, slot, count, drop, values in zip(
            rows.tolist(), slots, chunk, left + chunk - kept, probabilities, strict=True
        ):
            if not np.isfinite(values[: factor * count]).all():
                lost[row] = "the speaker model computes NaN for this audio"
            found[row].append(values[: factor * count])
            self._mel[slot, : self._filled[slot] - drop] = self._mel[slot, drop : self._filled[slot]]
            self._filled[slot] -= drop
        self._left[slots] = kept
