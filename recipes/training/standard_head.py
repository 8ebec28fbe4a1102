"""The RNN-T head for training: an LSTM predictor, and a joint over the given lattice points only."""

import torch

from penstock.model.config import TransducerConfig
from recipes.training import lattice
from recipes.training.cells import Cells
from recipes.training.head import TransducerHead

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


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
