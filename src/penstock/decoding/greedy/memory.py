"""The memory of greedy search: the labels of a chunk, the state between chunks in slots, and a chunk's workspace."""

from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import (
    StateStore,
    copy_into,
    copy_to_host,
    first,
    leaves,
    map_tensors,
    rows_at,
)
from penstock.decoding.transducer.interface import IlmWeights, PredictorState, TransducerNetwork
from penstock.model.config import IlmPair
from penstock.scoring.fusion import FusionStates

_LABEL, _TIMESTAMP, _DURATION, _SCORE = range(4)
_FIELDS = 4
IS_SEARCHING, IS_EMITTING = 0, 1
"""The flags: some hypothesis has not found its next label yet; some hypothesis has found one."""


class BatchedHyps:
    """Labels of B hypotheses; only entries below `lengths` are valid.

    labels, timestamps (absolute encoder frames), durations (encoder frames, 0 for an RNN-T label): [B, max] int64;
    scores: [B, max] float64, log-probabilities of the network without external scores; lengths: [B] int64. All are
    views of one tensor.
    """

    def __init__(
        self,
        batch: int,
        max_labels: int,
        device: torch.device | str = "cpu",
        is_growable: bool = False,
        storage: torch.Tensor | None = None,
        expected_labels: int | None = None,
    ):
        """is_growable: storage doubles when it might overflow; it then moves, so not inside a captured graph.

        storage: flat int64 of at least `storage_size(batch, max_labels)`, used instead of new memory.
        expected_labels: a length that is rarely exceeded; if it is, `to_host` copies a second time.
        """
        if storage is None:
            storage = torch.empty(max_labels + 2, batch, _FIELDS, dtype=torch.int64, device=device)
        else:
            storage = storage[: self.storage_size(batch, max_labels)].view(max_labels + 2, batch, _FIELDS)
        self._is_growable, self._expected_labels = is_growable, expected_labels
        self._bind(storage)
        self.clear()

    @staticmethod
    def storage_size(batch: int, max_labels: int) -> int:
        """Size of the storage in int64 numbers."""
        return (max_labels + 2) * batch * _FIELDS

    @property
    def max_labels(self) -> int:
        """Labels that a hypothesis can hold."""
        return self._storage.shape[0] - 2

    def clear(self) -> None:
        """Removes all labels."""
        self.lengths.zero_()
        self._additions = 0  # upper bound of all lengths, on the host; counted where storage may grow

    def add(
        self,
        is_added: torch.Tensor,
        labels: torch.Tensor,
        timestamps: torch.Tensor,
        durations: torch.Tensor,
        scores: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> None:
        """Appends a label where `is_added` [B] bool holds; all [B]. Storage that cannot grow must have room.

        rows: [b] int64, the hypotheses that the others are of, then [b]; by default all.
        """
        if self._is_growable:
            self._additions += 1
            if self._additions > self.max_labels:
                self._grow()
        score_bits = scores.double().view(torch.int64)
        values = torch.stack([labels, timestamps, durations, score_bits], dim=1)
        # A row that adds nothing writes to the last place, which is never read.
        if rows is None:
            place = torch.where(is_added, self.lengths + 1, self._nowhere)
            self._storage.scatter_(0, place.view(1, -1, 1).expand(1, -1, _FIELDS), values.unsqueeze(0))
            self.lengths += is_added
        else:
            place = torch.where(is_added, self.lengths.index_select(0, rows) + 1, self._nowhere)
            self._storage[place, rows] = values
            self.lengths.index_add_(0, rows, is_added.long())

    def extend(self, other: "BatchedHyps") -> None:
        """Appends all labels of `other` [B], for which there must be room. Does not synchronize."""
        numbers = torch.arange(other.max_labels, device=other.lengths.device).unsqueeze(1)
        is_taken = numbers < other.lengths  # [max, B]
        place = torch.where(is_taken, self.lengths + 1 + numbers, self._nowhere)
        self._storage.scatter_(0, place.unsqueeze(2).expand(-1, -1, _FIELDS), other._storage[1:-1])
        self.lengths += other.lengths

    def first(self, batch: int) -> "BatchedHyps":
        """The first `batch` hypotheses, in the same memory."""
        return self._over(self._storage[:, :batch])

    def to_host(self) -> "BatchedHyps":
        """Copies to the CPU; synchronizes. One copy, unless a hypothesis has more labels than expected."""
        if self._storage.device.type == "cpu":
            return self
        expected = self.max_labels if self._expected_labels is None else min(self._expected_labels, self.max_labels)
        # A prefix of the storage is one block of memory; of `first(batch)` the device gathers it into one.
        host = copy_to_host(self._storage[: expected + 2])
        if expected < self.max_labels and bool((host[0, :, 0] > expected).any()):
            host = copy_to_host(self._storage)
        return self._over(host)

    def _over(self, storage: torch.Tensor) -> "BatchedHyps":
        """Read-only hypotheses over an existing `storage` [max + 2, B, 4]."""
        hyps = BatchedHyps.__new__(BatchedHyps)
        hyps._is_growable, hyps._expected_labels, hyps._additions = False, self._expected_labels, 0
        hyps._bind(storage)
        return hyps

    def _bind(self, storage: torch.Tensor) -> None:
        """storage: [max + 2, B, 4]: the lengths, then a place for each label, then one for discarded writes."""
        self._storage = storage
        self._nowhere = storage.shape[0] - 1
        self.lengths = storage[0, :, 0]

    @property
    def labels(self) -> torch.Tensor:
        """[B, max]"""
        return self._field(_LABEL)

    @property
    def timestamps(self) -> torch.Tensor:
        """[B, max]"""
        return self._field(_TIMESTAMP)

    @property
    def durations(self) -> torch.Tensor:
        """[B, max]"""
        return self._field(_DURATION)

    @property
    def scores(self) -> torch.Tensor:
        """[B, max]"""
        return self._field(_SCORE).view(torch.float64)

    def _field(self, number: int) -> torch.Tensor:
        return self._storage[1:-1, :, number].t()

    def _grow(self) -> None:
        old = self._storage
        self._bind(torch.cat([old, torch.zeros_like(old)]))


class GreedyStates(NamedTuple):
    """State of B hypotheses. J width of a projected prediction."""

    projected_predictions: torch.Tensor
    """[B, J], the prediction after the last label."""
    predictor_state: PredictorState
    """Tensors [B, ...]."""
    next_frame: torch.Tensor
    """[B] int64, absolute encoder frame of the next search step; may lie beyond the frames seen (TDT)."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    labels_at_frame: torch.Tensor
    """[B] int64, labels already emitted at `next_frame`."""
    fusion: FusionStates | tuple[()]
    """Tensors [B]; all 0 in a fresh state, which has no effect: no phrases, and a language model of weight 0. A search
    without external scores needs none."""
    ilm: IlmWeights
    """Fields [B], the internal language model's weights; in a fresh state the checkpoint's."""


class GreedyStateStore(StateStore[GreedyStates]):
    """Greedy states of all streams."""

    def __init__(self, network: TransducerNetwork, slots: int):
        super().__init__(fresh_states(network, 1), slots)
        self.plain = self._sharing(self._states._replace(fusion=()))
        """The same states for a search without external scores."""

    def reset(self, slots: torch.Tensor, fusion: FusionStates | None = None, ilm: IlmWeights = ()) -> None:
        """Makes `slots` [B] int64 hypotheses without labels.

        fusion: the streams' start states [B], none by default; ilm: their weights [B], by default the checkpoint's.
        """
        fresh = self._fresh_states(len(slots))
        fresh = fresh if fusion is None else fresh._replace(fusion=fusion)
        self.scatter(slots, fresh._replace(ilm=ilm) if ilm else fresh)

    def begin_segment(self, slots: torch.Tensor) -> None:
        """Counts the frames of `slots` [B] int64 from here; the hypotheses go on."""
        states = self.gather(slots)
        ahead = states.next_frame - states.frames_seen
        self.scatter(slots, states._replace(next_frame=ahead, frames_seen=torch.zeros_like(ahead)))

    def restart_phrases(self, slots: torch.Tensor, start: int) -> None:
        """Moves the hypotheses of `slots` [B] int64 to the state `start` of a phrase list."""
        states = self.gather(slots)
        assert isinstance(states.fusion, FusionStates)
        at_start = torch.full_like(states.fusion.boost_states, start)
        self.scatter(slots, states._replace(fusion=states.fusion._replace(boost_states=at_start)))


def fresh_states(network: TransducerNetwork, batch: int) -> GreedyStates:
    """`batch` hypotheses without labels, without language model and phrases."""
    start = network.start(batch)

    def zeros(dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(batch, dtype=dtype, device=network.device)

    fusion = FusionStates(zeros(), zeros(), zeros(torch.float32))
    ilm = network.ilm_weights([network.config.ilm_greedy or IlmPair()] * batch)
    return GreedyStates(start.projected, start.state, zeros(), zeros(), zeros(), fusion, ilm)


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
