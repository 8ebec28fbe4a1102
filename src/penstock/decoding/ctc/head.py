"""The CTC head: encoder frames to log-probabilities of labels and blank, for every CTC search."""

import torch

from penstock.decoding.transducer.frame_projection import FrameProjection
from penstock.decoding.transducer.interface import Prediction, PredictorState
from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.runtime import prepare_device


class CtcHead:
    """Linear layer and log-softmax of a checkpoint with a CTC head.

    For beam search it has the interface of `TransducerNetwork` without a predictor.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        """CheckpointError for a checkpoint without a CTC head."""
        config = checkpoint.config.ctc
        if config is None:
            raise CheckpointError(f"{checkpoint.directory}: has no CTC head, only {checkpoint.config.head_name}")
        self.device, self.dtype = prepare_device(device), dtype
        self.vocabulary_size = config.vocabulary_size
        """V, labels without blank."""
        tensors = {name: tensor.to(self.device, dtype) for name, tensor in checkpoint.tensors("ctc.").items()}
        self._projection = FrameProjection(checkpoint, tensors["ctc.weight"], tensors["ctc.bias"])
        self.frame_width = config.vocabulary_size + 1
        """Width of `project_encoder`'s output."""

    @property
    def blank(self) -> int:
        """The blank label, after all others."""
        return self.vocabulary_size

    def log_probs(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Log-probabilities [B, T, V + 1] of labels and blank, blank last; encoded: [B, T, D], T may be 0.

        prompts: [B] int64, of a model with language prompts; else not used.
        """
        return torch.log_softmax(self._projection(encoded, prompts), dim=-1)

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """`log_probs`, as what beam search does with a chunk before its steps."""
        return self.log_probs(encoded, prompts)

    def start(self, count: int) -> Prediction:
        """The prediction of `count` hypotheses: a CTC head has no predictor, so it is empty, [count, 0]."""
        return Prediction(torch.zeros(count, 0, dtype=self.dtype, device=self.device), ())

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64, which is empty, too."""
        return self.start(len(labels))
