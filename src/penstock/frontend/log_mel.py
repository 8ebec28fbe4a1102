"""Computes log-mel chunks of streams of samples, exact at every chunk border.

Frame f of the offline front end spans samples [f * hop - window / 2, f * hop + window / 2), and pre-emphasis reads one
sample further back. The frames of a chunk are therefore a function of one window of samples, and windows of adjacent
chunks overlap by `window + 1 - hop` samples. A segment's first window starts `subsampling_factor - 1` frames before its
first sample, so that windows of every age have one shape (docs/architecture.md).
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from penstock.frontend.chunk_geometry import ChunkGeometry
from penstock.model.config import FeatureConfig
from penstock.runtime import send_to_device


class MelChunks(NamedTuple):
    """The chunks that the samples of one request completed."""

    mel: torch.Tensor
    """[C, N, F] float32, C whole chunks of N mel frames. A stream's first chunk opens with `virtual_mel_frames`
    frames from before its first sample, whose content is undefined."""
    last_valid_mel_frames: int
    """Frames of the last chunk that hold audio, virtual ones included: N, fewer at the end; 0 without chunks."""
    covered_samples: int
    """Samples from the stream's start that its chunks so far cover; all of them at the end of a segment."""


class LogMel:
    """Computes log-mel frames of windows of samples, without state.

    window: [frame_samples] float32; filterbank: [F, fft_samples // 2 + 1] float32.
    """

    def __init__(self, config: FeatureConfig, window: torch.Tensor, filterbank: torch.Tensor):
        self.config = config
        self._window = window
        spare = config.fft_samples - config.window_samples
        self._padding = (spare // 2, spare - spare // 2)
        self._filterbank = filterbank.t().contiguous()  # [bins, F]

    def __call__(self, windows: torch.Tensor, filled_samples: torch.Tensor) -> torch.Tensor:
        """Returns log-mel [B, N, F] float32 of windows [B, 1 + (N - 1) * hop + frame_samples] float32.

        filled_samples: [B] int64, where the audio of each window ends; samples behind it are silence *after*
        pre-emphasis, as in the offline front end.
        """
        config = self.config
        # 1) pre-emphasis; rounded after the product and not fused, because a logarithm shows the last bit of a weak bin
        emphasized = windows[:, 1:] - config.preemphasis * windows[:, :-1]
        position = torch.arange(1, windows.shape[1], device=windows.device)
        emphasized.masked_fill_(position >= filled_samples.unsqueeze(1), 0.0)
        # 2) power spectrum of frames centered in the FFT as offline, so that weak bins are rounded alike
        frames = emphasized.unfold(1, config.window_samples, config.hop_samples)  # [B, N, frame_samples]
        spectrum = torch.fft.rfft(F.pad(frames * self._window, self._padding))
        power = torch.view_as_real(spectrum).square().sum(-1)  # [B, N, bins]
        # 3) mel filterbank and logarithm, [B, N, bins] -> [B, N, F]
        return torch.matmul(power, self._filterbank).add_(config.log_guard).log_()


class SampleState:
    """The samples of each stream's unfinished window.

    Kept on the host: audio arrives there, and only whole windows are copied to the device.
    """

    def __init__(self, geometry: ChunkGeometry, slots: int):
        self._geometry = geometry
        self.windows = np.zeros((slots, geometry.window_samples), np.float32)  # [S, W]
        self.filled_samples = np.zeros(slots, np.int64)  # [S]
        self.chunks_emitted = np.zeros(slots, np.int64)  # [S], of the current segment
        self.earlier_samples = np.zeros(slots, np.int64)  # [S], of the stream's earlier segments

    def reset(self, slot: int) -> None:
        """Makes `slot` a stream without samples."""
        self._begin(slot)
        self.earlier_samples[slot] = 0

    def end_segment(self, slot: int) -> None:
        """Starts a new segment of the stream; its samples keep counting."""
        self.earlier_samples[slot] += self.received_samples(slot)
        self._begin(slot)

    def _begin(self, slot: int) -> None:
        lead = self._geometry.lead_samples
        self.windows[slot, :lead] = 0.0
        self.filled_samples[slot] = lead
        self.chunks_emitted[slot] = 0

    def append(self, slot: int, samples: np.ndarray) -> list[np.ndarray]:
        """Appends samples [n] to a stream and returns a copy of each window [W] that they completed."""
        window, filled, step = self.windows[slot], int(self.filled_samples[slot]), self._geometry.chunk_samples
        complete = []
        used = 0
        while used < len(samples):
            taken = min(len(window) - filled, len(samples) - used)
            window[filled : filled + taken] = samples[used : used + taken]
            filled, used = filled + taken, used + taken
            if filled == len(window):
                complete.append(window.copy())
                filled -= step
                window[:filled] = window[step:].copy()
        self.filled_samples[slot] = filled
        self.chunks_emitted[slot] += len(complete)
        return complete

    def received_samples(self, slot: int) -> int:
        """Samples of the segment so far."""
        geometry = self._geometry
        emitted = int(self.chunks_emitted[slot]) * geometry.chunk_samples
        return emitted + int(self.filled_samples[slot]) - geometry.lead_samples

    def covered_samples(self, slot: int) -> int:
        """Samples of the segment up to the end of the last hop of its whole chunks."""
        geometry = self._geometry
        frames = int(self.chunks_emitted[slot]) * geometry.chunk_mel_frames - geometry.virtual_mel_frames
        return max(0, frames) * geometry.hop_samples

    def remaining_mel_frames(self, slot: int) -> int:
        """Frames of the unfinished chunk that hold audio, virtual ones included; 0 if all of them are virtual."""
        geometry = self._geometry
        chunks = int(self.chunks_emitted[slot])
        frames = self.received_samples(slot) // geometry.hop_samples  # the offline front end has floor(L / hop) frames
        real_before = max(0, chunks * geometry.chunk_mel_frames - geometry.virtual_mel_frames)
        if frames <= real_before:
            return 0
        return frames + geometry.virtual_mel_frames - chunks * geometry.chunk_mel_frames


class FeatureExtractor:
    """Streaming log-mel of many streams in slots.

    Exact: the frames of all chunks of a segment are those of the offline front end.
    """

    def __init__(self, log_mel: LogMel, geometry: ChunkGeometry, slots: int, device: torch.device):
        self.geometry = geometry
        self._log_mel = log_mel
        self._device = device
        self._state = SampleState(geometry, slots)

    def open(self, slot: int) -> None:
        """Assigns `slot` to a new stream."""
        self._state.reset(slot)

    def end_segment(self, slot: int) -> None:
        """Starts a new segment of the stream, after its last chunk was extracted with `is_last`."""
        self._state.end_segment(slot)

    def extract(self, slots: list[int], samples: list[np.ndarray], is_last: list[bool]) -> list[MelChunks]:
        """Appends samples ([n] float32, any n) to each stream and returns the chunks that are complete.

        The rows are different streams. A row with `is_last` also gets its unfinished chunk.
        """
        windows: list[np.ndarray] = []
        filled: list[int] = []
        counts, last_valid, covered = [], [], []
        whole = self.geometry.chunk_mel_frames
        for slot, row, last in zip(slots, samples, is_last, strict=True):
            complete = self._state.append(slot, row)
            valid = whole if complete else 0
            filled += [self.geometry.window_samples] * len(complete)
            if last and (remaining := self._state.remaining_mel_frames(slot)):
                complete.append(self._state.windows[slot].copy())  # LogMel silences what lies behind its audio
                filled.append(int(self._state.filled_samples[slot]))
                valid = remaining
            windows += complete
            counts.append(len(complete))
            last_valid.append(valid)
            in_segment = self._state.received_samples(slot) if last else self._state.covered_samples(slot)
            covered.append(int(self._state.earlier_samples[slot]) + in_segment)
        mel = self._to_mel(windows, filled)
        return [MelChunks(*row) for row in zip(mel.split(counts), last_valid, covered, strict=True)]

    def no_chunks(self) -> torch.Tensor:
        """[0, N, F] float32."""
        bins = self._log_mel.config.mel_bins
        return torch.zeros(0, self.geometry.chunk_mel_frames, bins, device=self._device)

    def _to_mel(self, windows: list[np.ndarray], filled: list[int]) -> torch.Tensor:
        if not windows:
            return self.no_chunks()
        batch = send_to_device(torch.from_numpy(np.stack(windows)), self._device)
        return self._log_mel(batch, send_to_device(torch.tensor(filled), self._device))
