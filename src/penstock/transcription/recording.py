"""A recording on its way to an offline model: its samples become log-mel as they are read."""

from collections.abc import Callable

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.window_mel import MelPieces
from penstock.model.config import FeatureConfig
from penstock.pipeline.options.stream_options import StreamOptions
from penstock.pipeline.options.windows import check_length
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.stages.admission import MAX_MAGNITUDE, unusable_samples

_BLOCK_SAMPLES = 1 << 18  # 16 s at 16 kHz: an array is read in parts, so that no copy is as long as it


class Recording:
    """The log-mel of one recording; of its samples only the last few are kept."""

    def __init__(self, mel: MelPieces, features: FeatureConfig, options: StreamOptions):
        """mel: without samples."""
        self._mel, self._features, self.options = mel, features, options
        self.samples, self._unusable = 0, 0
        self.error: StreamError | None = None
        """Why it cannot be recognized."""

    def add(self, samples: np.ndarray) -> None:
        """Takes the next samples [n], floats in -1 .. 1 or int16."""
        samples = np.asarray(samples)
        if samples.ndim != 1 or (samples.dtype.kind != "f" and samples.dtype != np.int16):
            message = f"samples are {samples.dtype} {list(samples.shape)}; accepted: floats or int16 [n]"
            self._fail(ErrorCode.AUDIO_INVALID, message)
            return
        self.samples += len(samples)
        for begin in range(0, len(samples), _BLOCK_SAMPLES):
            block = samples[begin : begin + _BLOCK_SAMPLES]
            if block.dtype == np.int16:
                block = block / np.float32(32768)
            block = np.ascontiguousarray(block, np.float32)
            self._unusable += int((~(np.abs(block) <= MAX_MAGNITUDE)).sum())  # with NaN
            self._compute(self._mel.add, torch.from_numpy(block))

    def end(self) -> None:
        """Takes the end of the recording."""
        try:
            check_length(self.samples, self._features)
        except StreamError as error:
            self.error = self.error or error
        if self._unusable:
            self._fail(ErrorCode.AUDIO_INVALID, unusable_samples(self._unusable, self.samples))
        self._compute(self._mel.end)

    @torch.inference_mode()
    def take(self) -> list[torch.Tensor]:
        """Returns the log-mel as consecutive pieces [n, F] float32, and forgets it."""
        return [self._mel.take() for _ in range(self._mel.pieces_left)]

    @torch.inference_mode()
    def _compute(self, function: Callable[..., None], *arguments: torch.Tensor) -> None:
        if self.error is None:
            try:
                function(*arguments)
            except STEP_ERRORS as error:
                self._fail(ErrorCode.STREAM_LOST, f"the features failed: {error}")

    def _fail(self, code: ErrorCode, message: str) -> None:
        """Keeps the first error."""
        self.error = self.error or StreamError(code, message)
