"""Predictor and joint with random weights that emit about as many labels as those of a trained model.

Stands in for a checkpoint where only a `TransducerNetwork` is made of it. Knows no encoder.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.config import TransducerConfig
from penstock.decoding.greedy_state import fresh_rows
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork

RNNT, TDT = "rnnt", "tdt"
KINDS = (RNNT, TDT)
LABELS_PER_SECOND = 3.5
"""About what a tokenizer of 1,000 pieces makes of speech."""
ENCODER_FRAME_MS = 80.0
_TDT_DURATIONS = (0, 1, 2, 3, 4)
_ROW_DEVIATION, _LOGIT_DEVIATION = 1.2, 3.0
_SAMPLES = 200
_TRIAL = (16, 60)  # streams and encoder frames
_LEAST_BLANK_RATE, _BISECTIONS = 0.3, 6


class Sizes(NamedTuple):
    """Widths of a random model."""

    d_model: int
    hidden: int
    """Predictor and joint."""
    vocabulary_size: int


SIZES = {"small": Sizes(144, 256, 128), "large": Sizes(512, 640, 1024)}


@dataclass(frozen=True)
class _Config:
    transducer: TransducerConfig


class RandomTransducer:
    """The part of a `Checkpoint` that concerns predictor and joint."""

    def __init__(self, kind: str, sizes: Sizes, seed: int = 0):
        """kind: `RNNT` or `TDT` with durations 0 .. 4."""
        self.config = _Config(
            TransducerConfig(
                vocabulary_size=sizes.vocabulary_size,
                predictor_hidden=sizes.hidden,
                predictor_layers=1,
                joint_hidden=sizes.hidden,
                joint_activation="relu",
                tdt_durations=_TDT_DURATIONS if kind == TDT else (),
            )
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._tensors = self._draw(sizes)
        self._set_blank_rate()

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        """As `Checkpoint.tensors`."""
        return {name: tensor for name, tensor in self._tensors.items() if not prefixes or name.startswith(prefixes)}

    def frames(self, batch: int, encoder_frames: int) -> torch.Tensor:
        """Random encoder output [B, T, D]; another with every call."""
        return torch.randn(batch, encoder_frames, self._d_model, generator=self._generator)

    @property
    def _d_model(self) -> int:
        return self._tensors["joint.encoder.weight"].shape[1]

    def _draw(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        config, hidden = self.config.transducer, sizes.hidden

        def noise(rows: int, columns: int, deviation: float) -> torch.Tensor:
            return deviation * torch.randn(rows, columns, generator=self._generator) / columns**0.5

        return {
            "predictor.embedding.weight": noise(config.vocabulary_size + 1, hidden, hidden**0.5),
            "predictor.lstm.0.input_weight": noise(4 * hidden, hidden, 2.0),
            "predictor.lstm.0.hidden_weight": noise(4 * hidden, hidden, 2.0),
            "predictor.lstm.0.input_bias": torch.zeros(4 * hidden),
            "predictor.lstm.0.hidden_bias": torch.zeros(4 * hidden),
            "joint.encoder.weight": noise(hidden, sizes.d_model, _ROW_DEVIATION),
            "joint.encoder.bias": torch.zeros(hidden),
            "joint.predictor.weight": noise(hidden, hidden, _ROW_DEVIATION),
            "joint.predictor.bias": torch.zeros(hidden),
            "joint.output.weight": noise(config.joint_outputs, hidden, _LOGIT_DEVIATION),
            "joint.output.bias": torch.zeros(config.joint_outputs),
        }

    @torch.inference_mode()
    def _set_blank_rate(self) -> None:
        """Scales the predictor's part, then bisects the blank's bias until `LABELS_PER_SECOND` come out."""
        blank = self.config.transducer.vocabulary_size
        labels = torch.randint(blank, (4, _SAMPLES), generator=self._generator)
        rows = _predict(TransducerNetwork(self), labels)
        self._tensors["joint.predictor.weight"] *= _ROW_DEVIATION / rows.std()
        network = TransducerNetwork(self)
        scores = network.score(network.project_encoder(self.frames(1, _SAMPLES))[0], _predict(network, labels))
        leads = scores.labels.amax(dim=1) - scores.blank
        low, high = float(leads.quantile(_LEAST_BLANK_RATE)), float(leads.max())
        frames, bias = self.frames(*_TRIAL), self._tensors["joint.output.bias"]
        for _ in range(_BISECTIONS):
            bias[blank] = (low + high) / 2
            if self._labels_per_second(frames) > LABELS_PER_SECOND:
                low = float(bias[blank])
            else:
                high = float(bias[blank])

    def _labels_per_second(self, frames: torch.Tensor) -> float:
        network, (batch, encoder_frames, _) = TransducerNetwork(self), frames.shape
        lengths = torch.full((batch,), encoder_frames)
        hyps, _ = LabelLooping(network).decode(network.project_encoder(frames), lengths, fresh_rows(network, batch))
        return float(hyps.lengths.sum()) / (batch * encoder_frames) * 1000.0 / ENCODER_FRAME_MS


def _predict(network: TransducerNetwork, labels: torch.Tensor) -> torch.Tensor:
    """The prediction [N, J] after labels [U, N]."""
    prediction = network.start(labels.shape[1])
    for turn in labels:
        prediction = network.predict(turn, prediction.state)
    return prediction.rows
