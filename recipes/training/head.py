"""TransducerHead: what the two kinds of trainable heads share. Their weights have the names of a bundle's tensors."""

import re
from abc import abstractmethod

import torch

from penstock.adaptation.ilm import InternalLm
from penstock.model.config import TransducerConfig
from penstock.model.source_tensors import LSTM_NAMES
from recipes.training.cells import Cells, all_cells

_OWN_LSTM = re.compile(r"lstm\.(\w+_l)(\d+)")
_BUNDLE_LSTM_NAMES = {own: name for name, own in LSTM_NAMES.items()}


class TransducerHead(torch.nn.Module):
    """Predictor and joint of a Transducer without durations, over the frames of an encoder."""

    prefixes: tuple[str, ...]
    """Of the names of its tensors."""

    def __init__(self, config: TransducerConfig, dropout: float):
        super().__init__()
        self.config = config
        self._dropout = dropout

    @property
    @abstractmethod
    def ilm(self) -> InternalLm | None:
        """The internal language model, if the head has one."""

    @abstractmethod
    def log_probability(
        self, encoded: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, cells: Cells, alpha: float = 1.0
    ) -> torch.Tensor:
        """log P(y|x) [N] float64 of N label sequences, summed over the alignments within `cells`.

        encoded: [B, T, D], encoder frames; rows: [N] int64, the utterance of each sequence; labels: [N, U] int64;
        cells: their lattices; alpha: weight of the internal language model inside the softmax over labels, 1 without
        one. Computed in float32 or float64, outside autocast. ValueError where `cells` hold no path.
        """

    def losses(
        self, encoded: torch.Tensor, frame_counts: torch.Tensor, labels: torch.Tensor, label_counts: torch.Tensor
    ) -> torch.Tensor:
        """Eq. 1, -log P(y|x), of each of B utterances: [B] float64.

        encoded: [B, T, D]; labels: [B, U] int64; frame_counts, label_counts: [B] int64.
        """
        rows = torch.arange(len(labels), device=labels.device)
        return -self.log_probability(encoded, rows, labels, all_cells(frame_counts, label_counts))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of the weights, by their names in a bundle."""
        return {_bundle_name(name): p.detach().clone() for name, p in self.named_parameters()}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copies a bundle's tensors into the weights; KeyError for one that is missing, others are ignored."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(tensors[_bundle_name(name)])

    def dropped(self, tensor: torch.Tensor) -> torch.Tensor:
        """Applies dropout in training."""
        return torch.dropout(tensor, self._dropout, self.training)


def _bundle_name(name: str) -> str:
    return _OWN_LSTM.sub(lambda found: f"lstm.{found[2]}.{_BUNDLE_LSTM_NAMES[found[1]]}", name)
