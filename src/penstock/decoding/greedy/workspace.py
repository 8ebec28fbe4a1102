"""GreedyWorkspace: the tensors of one chunk that the steps of a greedy search read and write, at fixed addresses."""

import torch

from penstock.decoding.greedy.batched_hyps import BatchedHyps
from penstock.decoding.greedy.state import GreedyStates, fresh_states
from penstock.decoding.tensors.tensor_tree import copy_into, first, leaves, map_tensors, rows_at
from penstock.decoding.transducer.interface import TransducerNetwork

IS_SEARCHING, IS_EMITTING = 0, 1
"""The flags: some hypothesis has not found its next label yet; some hypothesis has found one."""


class GreedyWorkspace:
    """One chunk of B streams, T frames each.

    Input: projected_frames [B, T, J], lengths [B] int64. Input and output: states. Output: hyps.
    Scratch: frame [B] int64, each hypothesis's frame in this chunk, which is done at `lengths` or beyond; label, jump
    [B] int64, score [B], is_label [B] bool, the result of the last search step; label_scores [B, V], the
    log-probabilities of all labels at the frame of a label found, where fusion needs them and the network writes them;
    flags [2] bool. Steps write before they read, except for `jump`, which stays 0 for the labels of an RNN-T.
    """

    def __init__(
        self,
        projected_frames: torch.Tensor,
        lengths: torch.Tensor,
        states: GreedyStates,
        hyps: BatchedHyps,
        is_narrowable: bool = False,
    ):
        """Does not copy: the steps write into `states` and `hyps`. is_narrowable: the steps may `narrow`."""
        batch, device = projected_frames.shape[0], projected_frames.device
        self.projected_frames, self.lengths, self.states, self.hyps = projected_frames, lengths, states, hyps
        self.frame, self.label, self.jump = torch.zeros(3, batch, dtype=torch.int64, device=device).unbind()
        self.score = torch.empty(batch, dtype=projected_frames.dtype, device=device)
        self.is_label = torch.empty(batch, dtype=torch.bool, device=device)
        self.flags = torch.empty(2, dtype=torch.bool, device=device)
        self.is_searching, self.is_emitting = self.flags.unbind()
        self.label_scores: torch.Tensor | None = None
        self.is_narrowable = is_narrowable
        self.rows: torch.Tensor | None = None
        """[b] int64, the rows of `hyps` that the other tensors are of; None where they are of all."""
        self._wide: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, GreedyStates]] = []

    def narrow(self, kept: torch.Tensor) -> None:
        """Goes on with the hypotheses `kept` [b] int64 alone, until `widen`.

        Replaces all tensors, so not inside a captured graph.
        """

        def take(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.index_select(0, kept)

        self._wide.append((kept, self.lengths, self.frame, self.states))
        self.projected_frames, self.lengths, self.states = map_tensors(
            take, (self.projected_frames, self.lengths, self.states)
        )
        scratch = (self.frame, self.label, self.jump, self.score, self.is_label, self.label_scores)
        self.frame, self.label, self.jump, self.score, self.is_label, self.label_scores = map_tensors(take, scratch)
        self.rows = kept if self.rows is None else take(self.rows)

    def widen(self) -> None:
        """Goes back to all hypotheses, with their states and frames; what else is scratch does not count any more."""
        while self._wide:
            kept, lengths, frame, states = self._wide.pop()
            for place, values in zip(leaves((frame, states)), leaves((self.frame, self.states)), strict=True):
                place.index_copy_(0, kept, values)
            self.lengths, self.frame, self.states = lengths, frame, states
        self.rows = None

    def allocate_label_scores(self, labels: int) -> None:
        """Makes room for `label_scores`."""
        self.label_scores = self.projected_frames.new_zeros(len(self.lengths), labels)

    def frames_at(self, frames: torch.Tensor) -> torch.Tensor:
        """[B, W, J], the projected frames at `frames` [B, W] int64; beyond the end, the last one."""
        if self.max_frames == frames.shape[1] == 1:
            return self.projected_frames
        return rows_at(self.projected_frames, frames.clamp(max=self.max_frames - 1))

    @property
    def max_frames(self) -> int:
        """T, the frames that there is room for."""
        return self.projected_frames.shape[1]


class GreedyBuffers:
    """The memory of the workspaces of all bucket sizes, which share it because only one is in use at a time."""

    def __init__(self, network: TransducerNetwork, batch: int, frames: int, max_labels: int):
        """max_labels: of one stream in `frames`."""
        self._projected_frames = torch.zeros(
            batch, frames, network.frame_width, dtype=network.dtype, device=network.device
        )
        self._lengths = torch.zeros(batch, dtype=torch.int64, device=network.device)
        self._states = fresh_states(network, batch)
        self._max_labels, self._expected_labels = max_labels, 2 * frames + 2
        size = BatchedHyps.storage_size(batch, max_labels)
        self._storage = torch.zeros(size, dtype=torch.int64, device=network.device)

    def workspace(self, batch: int) -> GreedyWorkspace:
        """The workspace of a bucket: the first `batch` rows."""
        hyps = BatchedHyps(
            batch,
            self._max_labels,
            self._storage.device,
            storage=self._storage,
            expected_labels=self._expected_labels,
        )
        return GreedyWorkspace(self._projected_frames[:batch], self._lengths[:batch], first(self._states, batch), hyps)

    def load(self, projected_frames: torch.Tensor, lengths: torch.Tensor) -> None:
        """Copies one chunk in: projected_frames [b, t, J], lengths [b]; the rows from b on get length 0, so no step."""
        batch, frames, _ = projected_frames.shape
        self._projected_frames[:batch, :frames].copy_(projected_frames)
        self._lengths[:batch].copy_(lengths)
        self._lengths[batch:].zero_()

    def load_states(self, states: GreedyStates) -> None:
        """Copies the states of b streams in."""
        places = self._states if states.fusion else self._states._replace(fusion=())
        copy_into(first(places, len(states.frames_seen)), states)
