"""CTC searches in tests."""

import torch

from penstock.decoding.ctc import CtcHead


class GivenLogProbs(CtcHead):
    """A head whose log-probabilities are its input, float64."""

    def __init__(self, labels: int):
        self.vocabulary_size, self.frame_width = labels, labels + 1
        self.device, self.dtype = torch.device("cpu"), torch.float64

    def log_probs(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        return encoded.double()
