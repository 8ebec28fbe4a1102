"""BatchedHyps: the labels that one chunk added to each of B greedy hypotheses, as tensors."""

import torch


class BatchedHyps:
    """What greedy decoding found, row by row; only what is below `lengths` means anything.

    labels, timestamps (absolute encoder frames), durations (encoder frames, 0 for an RNN-T label): [B, max] int64;
    scores: [B, max] float32 log-probabilities; lengths: [B] int64.
    """

    def __init__(self, batch: int, max_labels: int, device="cpu"):
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self.labels, self.timestamps, self.durations = (
            torch.zeros(batch, max_labels, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.scores = torch.zeros(batch, max_labels, dtype=torch.float32, device=device)

    @property
    def max_labels(self) -> int:
        """Labels that a row can hold."""
        return self.labels.shape[1]

    def grow(self) -> None:
        """Doubles the storage. Reallocates: never inside a captured graph, where storage is sized per chunk."""
        for name in ("labels", "timestamps", "durations", "scores"):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old, torch.zeros_like(old)], dim=1))

    def add(
        self,
        is_added: torch.Tensor,
        labels: torch.Tensor,
        timestamps: torch.Tensor,
        durations: torch.Tensor,
        scores: torch.Tensor,
    ) -> None:
        """Appends one label to each row where `is_added` [B] holds; all [B]. The storage must have room."""
        # A row that adds nothing rewrites a value it already holds, or the unused one behind its end.
        place = self.lengths.clamp(max=self.max_labels - 1).unsqueeze(1)
        for storage, values in (
            (self.labels, labels), (self.timestamps, timestamps), (self.durations, durations), (self.scores, scores),
        ):  # fmt: skip
            kept = storage.gather(1, place).squeeze(1)
            storage.scatter_(1, place, torch.where(is_added, values.to(storage.dtype), kept).unsqueeze(1))
        self.lengths += is_added

    def to_host(self) -> "BatchedHyps":
        """The same on the CPU, in one copy; synchronises."""
        if self.labels.device.type == "cpu":
            return self
        score_bits = self.scores.double().view(torch.int64)
        packed = [self.lengths.unsqueeze(1), self.labels, self.timestamps, self.durations, score_bits]
        packed = torch.cat(packed, dim=1).cpu()
        host = BatchedHyps(0, 0)
        host.lengths = packed[:, 0]
        host.labels, host.timestamps, host.durations, scores = packed[:, 1:].chunk(4, dim=1)
        host.scores = scores.contiguous().view(torch.float64).float()
        return host
