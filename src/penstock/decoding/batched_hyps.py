"""BatchedHyps: the labels that one chunk added to each of B greedy hypotheses, as one tensor.

Knows no search. One tensor, so that adding a label is one write and the way to the host is one copy.
"""

import torch

from penstock.decoding.host_copy import copy_to_host

_LABEL, _TIMESTAMP, _DURATION, _SCORE = range(4)
_FIELDS = 4


class BatchedHyps:
    """What greedy decoding found, row by row; only what is below `lengths` means anything.

    labels, timestamps (absolute encoder frames), durations (encoder frames, 0 for an RNN-T label): [B, max] int64;
    scores: [B, max] float64, log-probabilities of the network alone, whatever a language model or boosting made of the
    choice; lengths: [B] int64. All are views of one tensor.
    """

    def __init__(
        self,
        batch: int,
        max_labels: int,
        device="cpu",
        is_growable: bool = False,
        storage: torch.Tensor | None = None,
        expected_labels: int | None = None,
    ):
        """is_growable: storage doubles when it might overflow; it then moves, so never inside a captured graph.

        storage: flat int64, at least `storage_size(batch, max_labels)` of it, to be used instead of memory of its own.
        expected_labels: what a row rarely exceeds; more than that goes to the host in a second copy.
        """
        size = self.storage_size(batch, max_labels)
        if storage is None:
            storage = torch.empty(size, dtype=torch.int64, device=device)
        self._is_growable, self._expected_labels = is_growable, expected_labels
        self._bind(storage[:size].view(max_labels + 2, batch, _FIELDS))
        self.clear()

    @staticmethod
    def storage_size(batch: int, max_labels: int) -> int:
        """Numbers (int64) that the storage takes."""
        return (max_labels + 2) * batch * _FIELDS

    @property
    def max_labels(self) -> int:
        """Labels that a row can hold."""
        return len(self._storage) - 2

    def clear(self) -> None:
        """Every row without labels."""
        self._storage[0].zero_()
        self._additions = 0  # of this chunk, where storage may grow: no row holds more labels

    def add(
        self,
        is_added: torch.Tensor,
        labels: torch.Tensor,
        timestamps: torch.Tensor,
        durations: torch.Tensor,
        scores: torch.Tensor,
    ) -> None:
        """Appends a label to each row where `is_added` [B] holds; all [B]. Storage that cannot grow must have room."""
        if self._is_growable:
            self._additions += 1
            if self._additions > self.max_labels:
                self._grow()
        score_bits = scores.double().view(torch.int64)
        values = torch.stack([labels, timestamps, durations, score_bits], dim=1)
        # A row that adds nothing writes into the last place, which nobody reads.
        place = torch.where(is_added, self.lengths + 1, self._nowhere)
        self._storage.scatter_(0, place.view(1, -1, 1).expand(1, -1, _FIELDS), values.unsqueeze(0))
        self.lengths += is_added

    def extend(self, other: "BatchedHyps") -> None:
        """Appends all labels of `other` [B], at most as many as there is room for. Does not synchronise."""
        numbers = torch.arange(other.max_labels, device=other.lengths.device).unsqueeze(1)
        is_taken = numbers < other.lengths  # [max, B]
        place = torch.where(is_taken, self.lengths + 1 + numbers, self._nowhere)
        self._storage.scatter_(0, place.unsqueeze(2).expand(-1, -1, _FIELDS), other._storage[1:-1])
        self.lengths += other.lengths

    def first(self, rows: int) -> "BatchedHyps":
        """The first `rows` of the rows, in the same memory."""
        return self._over(self._storage[:, :rows])

    def to_host(self) -> "BatchedHyps":
        """The same on the CPU; synchronises. One copy, unless some row holds more labels than expected."""
        if self._storage.device.type == "cpu":
            return self
        expected = self.max_labels if self._expected_labels is None else min(self._expected_labels, self.max_labels)
        host = copy_to_host(self._storage[: expected + 2])  # a prefix of the storage is one block of memory
        if expected < self.max_labels and bool((host[0, :, 0] > expected).any()):
            host = copy_to_host(self._storage)
        return self._over(host)

    def _over(self, storage: torch.Tensor) -> "BatchedHyps":
        """Hypotheses that lie in `storage` [max + 2, B, 4] already; nothing is to be added to them."""
        hyps = BatchedHyps.__new__(BatchedHyps)
        hyps._is_growable, hyps._expected_labels, hyps._additions = False, self._expected_labels, 0
        hyps._bind(storage)
        return hyps

    def _bind(self, storage: torch.Tensor) -> None:
        """storage: [max + 2, B, 4]: the lengths, then a place for each label, then one for what is thrown away."""
        self._storage = storage
        self._nowhere = torch.full((), len(storage) - 1, dtype=torch.int64, device=storage.device)
        self.lengths = storage[0, :, 0]
        fields = storage[1:-1].transpose(0, 1)
        self.labels, self.timestamps = fields[..., _LABEL], fields[..., _TIMESTAMP]
        self.durations, self.scores = fields[..., _DURATION], fields[..., _SCORE].view(torch.float64)

    def _grow(self) -> None:
        old = self._storage
        self._bind(torch.cat([old, torch.zeros_like(old)]))
