"""GreedyWorkspace: all that the steps of a greedy search read and write, as tensors that never move.

Knows neither the search nor who drives it.
"""

import torch

from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.greedy_state import GreedyRows, fresh_rows
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import leaves, map_rows

IS_SEARCHING, IS_EMITTING = 0, 1
"""The flags: some row still looks for its label; some row has found one."""


class GreedyWorkspace:
    """One chunk of B streams: T frames each, labels as they are found, and the streams' state.

    Input: frame_rows [B, T, J], lengths [B] int64. Input and output: rows. Output: hyps.
    In between: frame [B] int64, the frame of this chunk at which a row stands (at or behind its end: it is done);
    label, jump [B] int64, score [B], is_label [B] bool: what the last search step found; time [1] int64, the frame of a
    search that looks at the same one for all rows; label_rows [B, V], the log-probabilities behind a label found, where
    a language model or boosting has a say and the network writes them; flags [2] bool.
    """

    def __init__(self, frame_rows: torch.Tensor, lengths: torch.Tensor, rows: GreedyRows, hyps: BatchedHyps):
        """Takes the tensors as they are: the steps write into `rows` and `hyps`."""
        batch, device = len(lengths), lengths.device
        self.frame_rows, self.lengths, self.rows, self.hyps = frame_rows, lengths, rows, hyps
        self.frame, self.label, self.jump = torch.zeros(3, batch, dtype=torch.int64, device=device).unbind()
        self.score = torch.zeros(batch, dtype=frame_rows.dtype, device=device)
        self.is_label = torch.zeros(batch, dtype=torch.bool, device=device)
        self.time = torch.zeros(1, dtype=torch.int64, device=device)
        self.flags = torch.zeros(2, dtype=torch.bool, device=device)
        self.is_searching, self.is_emitting = self.flags.unbind()
        self.label_rows: torch.Tensor | None = None

    def keep_label_rows(self, labels: int) -> None:
        """Makes place for `label_rows`."""
        self.label_rows = self.frame_rows.new_zeros(len(self.lengths), labels)

    def rows_at(self, frames: torch.Tensor) -> torch.Tensor:
        """[B, W, J], the frame rows at `frames` [B, W] int64, the last one for those beyond the end."""
        index = frames.clamp(max=self.frames - 1).unsqueeze(2).expand(-1, -1, self.frame_rows.shape[2])
        return self.frame_rows.gather(1, index)

    @property
    def frames(self) -> int:
        """T, the frames that there is place for."""
        return self.frame_rows.shape[1]


class StaticBuffers:
    """The memory of the workspaces of all batch sizes up to one: they are used one after another, so they share it."""

    def __init__(self, network: TransducerNetwork, batch: int, frames: int, most_labels: int):
        """most_labels: what one row can find in `frames`."""
        self._frame_rows = torch.zeros(batch, frames, network.frame_width, dtype=network.dtype, device=network.device)
        self._lengths = torch.zeros(batch, dtype=torch.int64, device=network.device)
        self._rows = fresh_rows(network, batch)
        self._most_labels, self._expected_labels = most_labels, 2 * frames + 2
        size = BatchedHyps.storage_size(batch, most_labels)
        self._storage = torch.zeros(size, dtype=torch.int64, device=network.device)

    def workspace(self, batch: int) -> GreedyWorkspace:
        """The workspace of the first `batch` rows."""
        hyps = BatchedHyps(
            batch,
            self._most_labels,
            self._storage.device,
            storage=self._storage,
            expected_labels=self._expected_labels,
        )
        rows = map_rows(lambda t: t[:batch], self._rows)
        return GreedyWorkspace(self._frame_rows[:batch], self._lengths[:batch], rows, hyps)

    def load(self, frame_rows: torch.Tensor, lengths: torch.Tensor) -> None:
        """Copies one chunk in: frame_rows [b, t, J], lengths [b]; the rows behind b get length 0 and stay asleep."""
        batch, frames, _ = frame_rows.shape
        self._frame_rows[:batch, :frames].copy_(frame_rows)
        self._lengths[:batch].copy_(lengths)
        self._lengths[batch:].zero_()

    def load_rows(self, rows: GreedyRows) -> None:
        """Copies b streams' state in."""
        for place, new in zip(leaves(self._rows), leaves(rows), strict=True):
            place[: len(new)].copy_(new)
