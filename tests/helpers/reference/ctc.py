"""CTC decoding the slow and obvious way: one utterance, frame by frame."""

import torch

from tests.helpers.reference.greedy import Label


def greedy(log_probs: torch.Tensor) -> list[Label]:
    """Collapses the best labels of log_probs [T, V + 1], blank last; a label's score is that of its first frame."""
    blank, found, last = log_probs.shape[1] - 1, [], None
    for frame, row in enumerate(log_probs):
        label = int(row.argmax())
        if label == last and label != blank:
            found[-1] = found[-1]._replace(duration=found[-1].duration + 1)
        elif label != blank:
            found.append(Label(label, frame, 1, float(row[label])))
        last = label
    return found
