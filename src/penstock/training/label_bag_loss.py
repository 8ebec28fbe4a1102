"""Which labels an utterance has, whatever their order and place: what a network can learn before it has an alignment.

After "aggregation cross-entropy" (Xie et al., arXiv 1904.08364), without the blank: CTC and Transducer losses of a
network that knows nothing are lowest where nearly every frame is blank, and what a frame sounds like hardly moves them.
"""

import torch


def label_bag_loss(
    log_probs: torch.Tensor, counts: torch.Tensor, labels: torch.Tensor, label_counts: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy between the labels of an utterance and the labels its frames speak of, mean over utterances.

    log_probs: [T, B, V + 1], blank last; counts, label_counts: [B] int64; labels: [B, U] int64. Utterances without
    labels count as 0.
    """
    frames = torch.arange(log_probs.shape[0], device=log_probs.device)[:, None] < counts  # [T, B]
    of_labels = log_probs[:, :, :-1].masked_fill(~frames.unsqueeze(2), -torch.inf)
    shares = of_labels.logsumexp(0).log_softmax(1)  # [B, V]
    given = torch.arange(labels.shape[1], device=labels.device) < label_counts.unsqueeze(1)  # [B, U]
    found = shares.gather(1, labels).masked_fill(~given, 0.0)
    return -(found.sum(1) / label_counts.clamp(min=1)).mean()
