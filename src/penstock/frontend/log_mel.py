"""Computes log-mel chunks of streams of samples, exact at every chunk border.

Frame f of the offline front end spans samples [f * hop - window / 2, f * hop + window / 2), and pre-emphasis reads one
sample further back. The frames of a chunk are therefore a function of one window of samples, and windows of adjacent
chunks overlap by `window + 1 - hop` samples. A segment's first window starts `subsampling_factor - 1` frames before its
first sample, so that windows of every age have one shape (docs/architecture.md).
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from penstock.frontend.chunk_geometry import ChunkGeometry
from penstock.frontend.ranks import rounds
from penstock.model.config import FeatureConfig

MAX_MEL_FRAMES = 1024
"""Frames of one transform of chunks: its temporaries, 6 KB a frame, stay in the cache."""


class MelSource(Protocol):
    """A bundle of a recognizer or of a speaker model."""

    config: Any
    """With `features`."""

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        """Tensors as float32 on the CPU."""


class LogMel:
    """Computes log-mel frames of windows of samples, without state.

    window: [frame_samples] float32; filterbank: [F, fft_samples // 2 + 1] float32.
    """

    def __init__(self, config: FeatureConfig, window: torch.Tensor, filterbank: torch.Tensor):
        self.config = config
        spare = config.fft_samples - config.window_samples
        self._padding = (spare // 2, spare - spare // 2)
        self._window = F.pad(window, self._padding)  # [fft_samples]
        self._filterbank = filterbank.t().contiguous()  # [bins, F]

    @classmethod
    def of(cls, checkpoint: MelSource) -> "LogMel":
        """Makes a bundle's log-mel; raises CheckpointError as its `tensors`."""
        tensors = checkpoint.tensors("features.")
        return cls(checkpoint.config.features, tensors["features.window"], tensors["features.mel_filterbank"])

    def __call__(
        self, windows: torch.Tensor, filled_samples: torch.Tensor | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns log-mel [B, N, F] float32 of windows [B, 1 + (N - 1) * hop + frame_samples] float32.

        filled_samples: [B] int64, where the audio of each window ends, None where all are full; samples after it are
        silence *after* pre-emphasis, as in the offline front end. out: contiguous, where the result is written.
        """
        config = self.config
        batch, samples = windows.shape
        # 1) pre-emphasis; rounded after the product and not fused, because a logarithm shows the last bit of a weak bin
        padded = windows.new_zeros(batch, samples - 1 + sum(self._padding))
        emphasized = padded[:, self._padding[0] : self._padding[0] + samples - 1]
        torch.mul(windows[:, :-1], -config.preemphasis, out=emphasized).add_(windows[:, 1:])
        if filled_samples is not None:
            position = torch.arange(1, samples, device=windows.device)
            emphasized.masked_fill_(position >= filled_samples.unsqueeze(1), 0.0)
        # 2) power spectrum of frames centered in the FFT as offline, so that weak bins are rounded alike
        frames = padded.unfold(1, config.fft_samples, config.hop_samples)  # [B, N, fft_samples]
        squares = torch.view_as_real(torch.fft.rfft(frames * self._window)).square_()  # [B, N, bins, 2]
        power = squares[..., 0] + squares[..., 1]
        # 3) mel filterbank and logarithm, [B, N, bins] -> [B, N, F]
        flat = None if out is None else out.view(-1, config.mel_bins)
        mel = torch.mm(power.flatten(0, 1), self._filterbank, out=flat).add_(config.log_guard).log_()
        return mel.view(batch, frames.shape[1], config.mel_bins)


class SampleState:
    """The samples of each stream's unfinished window.

    NumPy arrays: audio arrives on the host, and features are computed there.
    """

    def __init__(self, geometry: ChunkGeometry, slots: int):
        self._geometry = geometry
        self._window_samples, self._chunk_samples = geometry.window_samples, geometry.chunk_samples
        self.windows = np.zeros((slots, geometry.window_samples), np.float32)  # [S, W]
        self.filled_samples = np.zeros(slots, np.int64)  # [S]
        self.chunks_emitted = np.zeros(slots, np.int64)  # [S]
        self.ended_samples = np.zeros(slots, np.int64)  # [S], before the last end of a segment

    def reset(self, slots: np.ndarray) -> None:
        """Makes `slots` [n] streams without samples."""
        self.ended_samples[slots] = 0
        lead = self._geometry.lead_samples
        self.windows[slots, :lead] = 0.0
        self.filled_samples[slots] = lead
        self.chunks_emitted[slots] = 0

    def append(
        self, slots: np.ndarray, samples: np.ndarray, lengths: np.ndarray, starts: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Appends to each of different streams `slots` [n] its part of `samples`.

        Returns the windows that they completed, in rounds: (positions in `slots`, copies of the windows [k, W]).
        """
        size, step = self._window_samples, self._chunk_samples
        complete = []
        rows = lengths.nonzero()[0]
        left, start = lengths[rows], starts[rows]
        while len(rows):
            # 1) fill each window as far as the samples go
            places = slots[rows]
            filled = self.filled_samples[places]
            taken = np.minimum(size - filled, left)
            self._copy(places, filled, samples, start, taken)
            filled += taken
            # 2) copy complete windows; the next one begins with the overlap
            done = (filled == size).nonzero()[0]
            if len(done):
                emptied = places[done]
                windows = self.windows[emptied]
                self.windows[emptied, : size - step] = windows[:, step:]
                self.chunks_emitted[emptied] += 1
                complete.append((rows[done], windows))
                filled[done] = size - step
            self.filled_samples[places] = filled
            # 3) go on with the rows that have more
            left = left - taken
            more = left.nonzero()[0]
            if not len(more):
                break
            rows, left, start = rows[more], left[more], (start + taken)[more]
        return complete

    def _copy(
        self, slots: np.ndarray, filled: np.ndarray, samples: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> None:
        """Copies `counts` [n] of `samples`, from `starts` [n] on, after the `filled` [n] samples of `slots` [n].

        At once for all streams with the same `filled` and count, as most have that send whole chunks.
        """
        kinds = filled * (self._window_samples + 1) + counts
        while len(kinds):
            at, count = int(filled[0]), int(counts[0])
            shape = (len(samples) - count + 1, count)
            parts: np.ndarray = np.ndarray(shape, np.float32, samples, 0, 2 * samples.strides)
            is_same = kinds == kinds[0]
            self.windows[slots[is_same], at : at + count] = parts[starts[is_same]]
            others = (~is_same).nonzero()[0]
            if not len(others):
                break
            kinds, slots, filled, starts, counts = (each[others] for each in (kinds, slots, filled, starts, counts))

    def received_samples(self, slots: np.ndarray) -> np.ndarray:
        """Samples [n] of the streams so far."""
        geometry = self._geometry
        return self.chunks_emitted[slots] * geometry.chunk_samples + self.filled_samples[slots] - geometry.lead_samples

    def covered_samples(self, slots: np.ndarray) -> np.ndarray:
        """Samples [n] of the streams up to the end of the last hop of whole chunks, or of a segment after that."""
        geometry = self._geometry
        frames = self.chunks_emitted[slots] * geometry.chunk_mel_frames - geometry.virtual_mel_frames
        return np.maximum(frames * geometry.hop_samples, self.ended_samples[slots])

    def remaining_mel_frames(self, slots: np.ndarray) -> np.ndarray:
        """Frames [n] of the unfinished chunks that hold audio, virtual ones included; 0 if all of them are virtual."""
        geometry = self._geometry
        before = self.chunks_emitted[slots] * geometry.chunk_mel_frames
        frames = self.received_samples(slots) // geometry.hop_samples  # the offline front end has floor(L / hop) frames
        is_real = frames > np.maximum(before - geometry.virtual_mel_frames, 0)
        return np.where(is_real, frames + geometry.virtual_mel_frames - before, 0)


class ChunkRows(NamedTuple):
    """The chunks that R rows of samples completed."""

    mel: torch.Tensor
    """[C, N, F] float32, C whole chunks of N mel frames, one row after another. A stream's first chunk opens with
    `virtual_mel_frames` frames from before its first sample, whose content is undefined."""
    chunks: np.ndarray
    """[R] int64, how many of them belong to each row."""
    last_valid_mel_frames: np.ndarray
    """[R] int64, frames of the row's last chunk that hold audio, virtual ones included; 0 without chunks."""
    covered_samples: np.ndarray
    """[R] int64, samples from the stream's start that its chunks so far cover; all of them at the end of a segment."""
    has_open: np.ndarray
    """[R] bool, the last chunk of the row is unfinished; where the stream goes on, it comes again with more audio."""


class FeatureExtractor:
    """Streaming log-mel of many streams in slots.

    Exact: the frames of all chunks of a segment are those of the offline front end.
    """

    def __init__(self, log_mel: LogMel, geometry: ChunkGeometry, slots: int):
        self.geometry = geometry
        self._log_mel = log_mel
        self._state = SampleState(geometry, slots)

    def extract(
        self,
        slots: np.ndarray,
        samples: np.ndarray,
        lengths: np.ndarray,
        is_first: np.ndarray,
        is_last: np.ndarray,
    ) -> ChunkRows:
        """Appends rows of samples to streams, in order, and returns the chunks that are complete.

        slots: [R] int64, the stream of each row; samples: [n] float32 of all rows, one row after another; lengths: [R]
        int64; is_first: [R] bool, the row begins a new stream in its slot; is_last: [R] bool, the row ends a segment
        and also gets the unfinished chunk as it is; the stream may go on as if it had not.
        """
        state, geometry = self._state, self.geometry
        samples, starts = np.ascontiguousarray(samples), lengths.cumsum() - lengths
        chunks, last_valid, covered = np.zeros((3, len(slots)), np.int64)
        has_open = np.zeros(len(slots), bool)
        owners: list[np.ndarray] = []
        windows: list[np.ndarray] = []
        filled: list[np.ndarray] = []
        for rows in rounds(slots):
            # 1) the next row of each stream
            own = slots[rows]
            if len(new := own[is_first[rows]]):
                state.reset(new)
            for done, complete in state.append(own, samples, lengths[rows], starts[rows]):
                owners.append(rows[done])
                windows.append(complete)
                filled.append(np.full(len(done), complete.shape[1]))
                chunks[rows[done]] += 1
            last_valid[rows] = np.where(chunks[rows] > 0, geometry.chunk_mel_frames, 0)
            covered[rows] = state.covered_samples(own)
            # 2) unfinished chunks of segments that end; LogMel silences what lies after their audio
            last = rows[is_last[rows]]
            if len(last):
                ended = slots[last]
                covered[last] = state.ended_samples[ended] = state.received_samples(ended)
                remaining = state.remaining_mel_frames(ended)
                unfinished = remaining > 0
                owners.append(last[unfinished])
                windows.append(state.windows[ended[unfinished]])
                filled.append(state.filled_samples[ended[unfinished]])
                chunks[last[unfinished]] += 1
                last_valid[last[unfinished]] = remaining[unfinished]
                has_open[last[unfinished]] = True
        return ChunkRows(self._to_mel(owners, windows, filled), chunks, last_valid, covered, has_open)

    def no_chunks(self) -> torch.Tensor:
        """[0, N, F] float32."""
        return torch.zeros(0, self.geometry.chunk_mel_frames, self._log_mel.config.mel_bins)

    def _to_mel(self, owners: list[np.ndarray], windows: list[np.ndarray], filled: list[np.ndarray]) -> torch.Tensor:
        """[C, N, F] of windows in the order of the rows that own them."""
        if not sum(map(len, owners)):
            return self.no_chunks()
        batch, ends = windows[0], filled[0]
        if len(owners) > 1:
            order = np.argsort(np.concatenate(owners), kind="stable")
            batch, ends = np.concatenate(windows)[order], np.concatenate(filled)[order]
        mel = torch.empty(len(batch), self.geometry.chunk_mel_frames, self._log_mel.config.mel_bins)
        count = max(MAX_MEL_FRAMES // self.geometry.chunk_mel_frames, 1)
        for start in range(0, len(batch), count):
            part = slice(start, start + count)
            are_full = ends[part].min() == batch.shape[1]
            filled_samples = None if are_full else torch.from_numpy(ends[part])
            self._log_mel(torch.from_numpy(batch[part]), filled_samples, out=mel[part])
        return mel
