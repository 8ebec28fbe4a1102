"""Trainable heads over the frames of an encoder, RNN-T and factorized, and the bundles that they become.

Their weights have the names of a bundle's tensors. The factorized transducer is that of "Effective internal language
model training and fusion for factorized transducer model", eq. 2 and 4. Nothing has the shape [T, U, V]: the softmax
over labels is normalized by a matrix product.
"""

import dataclasses
import re
from abc import abstractmethod
from pathlib import Path

import torch
from torch.nn.functional import logsigmoid

from penstock.adaptation.ilm import InternalLm
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.config import IlmPair, TransducerConfig
from penstock.model.new_bundle import write_new_bundle
from penstock.model.source_tensors import LSTM_NAMES
from recipes.training import lattice
from recipes.training.lattice import Cells, all_cells

_OWN_LSTM = re.compile(r"lstm\.(\w+_l)(\d+)")
_BUNDLE_LSTM_NAMES = {own: name for name, own in LSTM_NAMES.items()}
_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class TransducerHead(torch.nn.Module):
    """Predictor and joint of a Transducer without durations, over the frames of an encoder."""

    prefixes: tuple[str, ...]
    """Prefixes of its tensors' names."""

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


class StandardHead(TransducerHead):
    """Predictor and joint of an RNN-T; the joint's outputs are computed for the C points of the lattices alone."""

    prefixes = ("predictor.", "joint.")
    ilm = None

    def __init__(self, config: TransducerConfig, d_model: int, dropout: float = 0.0):
        """d_model: width of the encoder frames; dropout: of the joint's two inputs. ValueError for a TDT model."""
        super().__init__(config, dropout)
        if config.is_tdt:
            raise ValueError("tdt_durations: a head with durations cannot be trained by lattices; accepted: RNN-T")
        hidden = config.predictor_hidden
        self.predictor = torch.nn.ModuleDict(
            {
                "embedding": torch.nn.Embedding(config.vocabulary_size + 1, hidden),
                "lstm": torch.nn.LSTM(hidden, hidden, config.predictor_layers, batch_first=True),
            }
        )
        self.joint = torch.nn.ModuleDict(
            {
                "encoder": torch.nn.Linear(d_model, config.joint_hidden),
                "predictor": torch.nn.Linear(hidden, config.joint_hidden),
                "output": torch.nn.Linear(config.joint_hidden, config.vocabulary_size + 1),
            }
        )
        self._activation = _ACTIVATIONS[config.joint_activation]

    def log_probability(
        self, encoded: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, cells: Cells, alpha: float = 1.0
    ) -> torch.Tensor:
        """See `TransducerHead`; ValueError for an alpha other than 1."""
        if alpha != 1.0:
            raise ValueError(f"alpha: {alpha:g}; accepted: 1, an RNN-T has no internal language model")
        with torch.autocast(encoded.device.type, enabled=False):
            # 1) project frames, [B, T, J], and predictions, [N, U + 1, J]
            frames = self.dropped(self.joint["encoder"](encoded))
            start = labels.new_full((len(labels), 1), self.config.vocabulary_size)
            predicted, _ = self.predictor["lstm"](self.predictor["embedding"](torch.cat([start, labels], dim=1)))
            predictions = self.dropped(self.joint["predictor"](predicted))
            # 2) the joint at the lattices' points: [C, V + 1]
            hidden = frames[rows[cells.rows], cells.frames] + predictions[cells.rows, cells.places]
            log_probs = torch.log_softmax(self.joint["output"](self._activation(hidden)), dim=-1)
            # 3) blank and the next label
            next_labels = log_probs.gather(1, cells.labels_of(labels).unsqueeze(1)).squeeze(1)
            return lattice.log_probability(cells, log_probs[:, -1], next_labels)


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


def write_head_bundle(
    directory: Path,
    encoder: Checkpoint,
    head: TransducerHead,
    source: dict[str, str],
    *,
    beam_pair: IlmPair | None = None,
    greedy_pair: IlmPair | None = None,
    half: bool = False,
    replace: bool = False,
) -> Checkpoint:
    """Writes `directory`, at once or not at all.

    beam_pair, greedy_pair: defaults of a factorized head's streams, by default those of its configuration. source: of
    the model, for config.json. half: store float16, except for `features.`. replace: as in `write_new_bundle`; no model
    card is kept. Raises CheckpointError.
    """
    config = head.config
    if head.ilm is not None:
        config = dataclasses.replace(
            config, ilm_beam=beam_pair or config.ilm_beam, ilm_greedy=greedy_pair or config.ilm_greedy
        )
    model = dataclasses.replace(encoder.config, transducer=config)
    tensors = encoder.tensors("features.", "encoder.", "ctc.")
    tensors |= {name: tensor.cpu() for name, tensor in head.tensors().items()}
    if half:
        tensors = {name: t if name.startswith("features.") else t.half() for name, t in tensors.items()}
    tokenizer = encoder.tokenizer_path.read_bytes()

    def convert(scratch: Path) -> Path:
        return write_checkpoint(scratch / "bundle", model, tensors, tokenizer, source).directory

    return write_new_bundle(directory, replace, convert, keeps_card=False)
