"""The head of a factorized transducer for training: a blank branch, an acoustic branch, an internal language model.

"Effective internal language model training and fusion for factorized transducer model", eq. 2 and 4. Nothing has the
shape [T, U, V]: the softmax over labels is normalized by a matrix product.
"""

import torch
from torch.nn.functional import logsigmoid

from penstock.adaptation.ilm import InternalLm
from penstock.model.config import TransducerConfig
from recipes.training import lattice
from recipes.training.cells import Cells
from recipes.training.head import TransducerHead


class FactorizedHead(TransducerHead):
    """P_b = sigmoid(w . tanh(A h_t + B e_y)), P_nb = softmax(W h_t + alpha log P_ilm)."""

    prefixes = ("predictor.", "blank.", "acoustic.")

    def __init__(self, config: TransducerConfig, d_model: int, dropout: float = 0.0):
        """d_model: width of the encoder frames; dropout: of the blank branch's two inputs."""
        super().__init__(config, dropout)
        labels, joint = config.vocabulary_size, config.joint_hidden
        self.predictor = InternalLm(labels, config.predictor_hidden, config.predictor_layers)
        self.blank = torch.nn.ModuleDict(
            {
                "embedding": torch.nn.Embedding(labels + 1, joint),
                "encoder": torch.nn.Linear(d_model, joint),
                "output": torch.nn.Linear(joint, 1),
            }
        )
        self.acoustic = torch.nn.Linear(d_model, labels)

    @property
    def ilm(self) -> InternalLm:
        """The internal language model; it has no dropout and is usually frozen."""
        return self.predictor

    def log_probability(
        self, encoded: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, cells: Cells, alpha: float = 1.0
    ) -> torch.Tensor:
        """See `TransducerHead`."""
        with torch.autocast(encoded.device.type, enabled=False):
            # 1) blank, at the lattices' points: [C, J] -> [C]
            frames = self.dropped(self.blank["encoder"](encoded))
            start = labels.new_full((len(labels), 1), self.config.vocabulary_size)
            last = self.dropped(self.blank["embedding"](torch.cat([start, labels], dim=1)))
            hidden = torch.tanh(frames[rows[cells.rows], cells.frames] + last[cells.rows, cells.places])
            blank_logits = self.blank["output"](hidden).squeeze(1)
            # 2) label, from [B, T, V] and [N, U + 1, V]
            acoustic, ilm = self.acoustic(encoded), alpha * self.predictor(labels)
            normalizers = log_normalizers(acoustic, ilm, rows)[cells.rows, cells.frames, cells.places]
            next_labels = cells.labels_of(labels)
            label_scores = acoustic[rows[cells.rows], cells.frames, next_labels]
            label_scores = label_scores + ilm[cells.rows, cells.places, next_labels] - normalizers
            # 3) log(1 - P_b) is logsigmoid(-z): the logarithm of a difference is -inf from z = 20 on
            return lattice.log_probability(cells, logsigmoid(blank_logits), logsigmoid(-blank_logits) + label_scores)


def log_normalizers(acoustic: torch.Tensor, ilm: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """log of the sum over labels k of exp(acoustic[rows[n], t, k] + ilm[n, u, k]), as a product of exponentials.

    acoustic: [B, T, V]; ilm: [N, U + 1, V]; rows: [N] int64. Returns [N, T, U + 1] float64. The exponentials, with
    maxima taken off, are float64: a label that is the best in one factor may be very unlikely in the other.
    """
    acoustic_max, ilm_max = acoustic.detach().amax(dim=2), ilm.detach().amax(dim=2)
    by_frame = (acoustic - acoustic_max.unsqueeze(2)).double().exp().unbind(0)
    by_place = (ilm - ilm_max.unsqueeze(2)).double().exp().unbind(0)
    sums = torch.stack([by_frame[row] @ places.t() for row, places in zip(rows.tolist(), by_place, strict=True)])
    return sums.log() + acoustic_max[rows].unsqueeze(2) + ilm_max.unsqueeze(1)
