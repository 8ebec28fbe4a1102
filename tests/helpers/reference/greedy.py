"""Greedy Transducer decoding the slow and obvious way: one hypothesis, one frame, one label at a time.

The fast searches must give its results. It uses a checkpoint's tensors only, with its own predictor and joint.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.model.config import IlmPair, TransducerConfig

Tensors = dict[str, torch.Tensor]
LstmState = list[tuple[torch.Tensor, torch.Tensor]]

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class Label(NamedTuple):
    """One decoded label."""

    id: int
    timestamp: int
    duration: int
    score: float


class GreedyReference:
    """One utterance at a time, frame by frame."""

    def __init__(
        self, config: TransducerConfig, tensors: Tensors, max_symbols: int | None = None, pair: IlmPair | None = None
    ):
        """max_symbols: labels at one frame before time moves on by one frame; by default as in the checkpoint.

        pair: weights of a factorized transducer's internal language model, by default 1 and 0.
        """
        self._config = config
        self._tensors = tensors
        self._max_symbols = max_symbols or config.max_symbols
        # The searches have the weights in float32.
        self._pair = IlmPair(*torch.tensor(pair or IlmPair(), dtype=torch.float32).tolist())

    def decode(self, encoded: torch.Tensor, choose: Callable[[torch.Tensor], int] | None = None) -> list[Label]:
        """encoded: [T, D], the whole utterance.

        choose: selects the label, where it is not blank, from the log-probabilities [V] of the labels.
        """
        blank = self._config.vocabulary_size
        prediction, state = self.predict(blank, self.start())
        found: list[Label] = []
        frame = labels_here = 0
        while frame < len(encoded):
            logits = self.joint(encoded[frame], prediction)
            label = int(self.ranking(logits, prediction).argmax())
            duration = self._duration(logits, label)
            if label == blank:
                frame, labels_here = frame + max(1, duration), 0
                continue
            log_probs = logits[: blank + 1].log_softmax(0)
            if choose is not None:
                label = choose(log_probs[:blank] + self.ilm_scores(prediction))
            score = float(log_probs[label])
            found.append(Label(label, frame, duration, score))
            prediction, state = self.predict(label, state)
            labels_here += 1
            if duration == 0 and labels_here == self._max_symbols:
                duration = 1
            if duration > 0:
                frame, labels_here = frame + duration, 0
        return found

    def _duration(self, logits: torch.Tensor, label: int) -> int:
        blank = self._config.vocabulary_size
        if not self._config.tdt_durations:
            return int(label == blank)
        return self._config.tdt_durations[int(logits[blank + 1 :].argmax())]

    def start(self) -> LstmState:
        """State before the first label."""
        zeros = self._tensors["predictor.embedding.weight"].new_zeros(self._config.predictor_hidden)
        return [(zeros, zeros)] * self._config.predictor_layers

    def predict(self, label: int, state: LstmState) -> tuple[torch.Tensor, LstmState]:
        """Predictor output [H] after `label`, and the new state; if factorized, B e_y and log P_ilm, [J + V]."""
        x = self._tensors["predictor.embedding.weight"][label]
        new_state = []
        for layer, (hidden, cell) in enumerate(state):
            hidden, cell = self._lstm_cell(f"predictor.lstm.{layer}.", x, hidden, cell)
            new_state.append((hidden, cell))
            x = hidden
        if self._config.is_factorized:
            logits = self._tensors["predictor.output.weight"] @ x + self._tensors["predictor.output.bias"]
            x = torch.cat([self._tensors["blank.embedding.weight"][label], logits.log_softmax(0)])
        return x, new_state

    def _lstm_cell(
        self, prefix: str, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = [self._tensors[prefix + name] for name in ("input_weight", "hidden_weight")]
        biases = self._tensors[prefix + "input_bias"] + self._tensors[prefix + "hidden_bias"]
        gates = weights[0] @ x + weights[1] @ hidden + biases
        write, forget, candidate, read = gates.split(len(hidden))
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(read) * torch.tanh(cell), cell

    def joint(self, encoded_frame: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        """Logits [V + 1 + D] of one encoder frame [D] and one prediction [H]."""
        tensors = self._tensors
        if self._config.is_factorized:
            return self._factorized_joint(encoded_frame, prediction)
        from_encoder = tensors["joint.encoder.weight"] @ encoded_frame + tensors["joint.encoder.bias"]
        from_predictor = tensors["joint.predictor.weight"] @ prediction + tensors["joint.predictor.bias"]
        hidden = _ACTIVATIONS[self._config.joint_activation](from_encoder + from_predictor)
        return tensors["joint.output.weight"] @ hidden + tensors["joint.output.bias"]

    def _factorized_joint(self, encoded_frame: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [V + 1] by equations 2 and 4, as they stand in the paper."""
        tensors, width = self._tensors, self._config.joint_hidden
        from_encoder = tensors["blank.encoder.weight"] @ encoded_frame + tensors["blank.encoder.bias"]
        hidden = torch.tanh(from_encoder + prediction[:width])
        blank = torch.sigmoid(tensors["blank.output.weight"] @ hidden + tensors["blank.output.bias"])
        acoustic = (tensors["acoustic.weight"] @ encoded_frame + tensors["acoustic.bias"]).log_softmax(0)
        labels = (acoustic + self._pair.alpha * prediction[width:]).softmax(0)
        return torch.cat([(1 - blank) * labels, blank]).log()

    def ranking(self, logits: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
        """Scores for the choice between labels and blank, [V + 1]: logits with the internal language model."""
        blank = self._config.vocabulary_size
        return torch.cat([logits[:blank] + self.ilm_scores(prediction), logits[blank : blank + 1]])

    def ilm_scores(self, prediction: torch.Tensor) -> torch.Tensor:
        """beta log P_ilm of all labels, [V]; zeros of an RNN-T or TDT model."""
        if not self._config.is_factorized:
            return prediction.new_zeros(self._config.vocabulary_size)
        return self._pair.beta * prediction[self._config.joint_hidden :]
