"""BatchedHyps: the labels that one chunk added to each of B greedy hypotheses.

All in one tensor, so that adding a label is one write, and the way to the host one copy.
"""

import torch

from penstock.decoding.tensors.host_copy import copy_to_host

_LABEL, _TIMESTAMP, _DURATION, _SCORE = range(4)
_FIELDS = 4


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
