"""The internal language model (ILM) of a factorized transducer: training on text alone, perplexity, sampling.

Source: "Effective internal language model training and fusion for factorized transducer model", eq. 3. Pre-training and
adaptation are the same loop; adaptation also draws sentences to keep. The model has no end of sentence.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

Sentence = Sequence[int]
"""Labels 0 .. V-1."""
PREFIX = "predictor."
"""Names of the model's tensors in a bundle begin with it, and no others do."""
MAX_LABELS = 256
"""A longer sentence is divided; each part is scored from the start of a sentence."""
HELD_OUT_EVERY = 10
"""One sentence of a text in this number is held out."""
LSTM_NAMES = {
    "input_weight": "weight_ih_l",
    "hidden_weight": "weight_hh_l",
    "input_bias": "bias_ih_l",
    "hidden_bias": "bias_hh_l",
}
"""Names in a bundle, and torch's before the number of the layer."""
_SCORED_AT_ONCE = 128
_SAMPLED_AT_ONCE = 1024
_MEASURED_SENTENCES = 1000
"""At most this many held-out sentences, evenly spaced, choose the best step."""
_GRADIENT_NORM = 1.0


class InternalLm(torch.nn.Module):
    """Embedding, LSTM and linear layer over V labels: P_ilm of the paper's fig. 1."""

    def __init__(self, vocabulary_size: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary_size + 1, hidden)  # the last row: before the first label
        self.lstm = torch.nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.output = torch.nn.Linear(hidden, vocabulary_size)

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> "InternalLm":
        """A copy of a bundle's tensors that begin with `PREFIX`; others are ignored."""
        vocabulary_size, hidden = tensors[f"{PREFIX}output.weight"].shape
        layers = sum(name.startswith(f"{PREFIX}lstm.") and name.endswith(".input_weight") for name in tensors)
        ilm = cls(vocabulary_size, hidden, layers)
        ilm.load_tensors(tensors)
        return ilm

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copies a bundle's tensors into the model; KeyError for one that is missing."""
        with torch.no_grad():
            for name, parameter in self._by_bundle_name().items():
                parameter.copy_(tensors[name])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of the weights by their names in a bundle."""
        return {name: parameter.detach().clone() for name, parameter in self._by_bundle_name().items()}

    @property
    def vocabulary_size(self) -> int:
        """V; also the input before the first label."""
        return self.output.out_features

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        """log P_ilm of the next label before and after each of `labels` [B, U] int64: [B, U + 1, V].

        Labels after the end of a sentence may be any valid label; they change no row before them.
        """
        return torch.log_softmax(self.output(self._hidden(labels)), dim=-1)

    def label_losses(self, labels: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Eq. 3, -log P_ilm of every label; labels: [B, U] int64, counts: [B]. Returns [sum of counts] float32."""
        is_label = torch.arange(labels.shape[1], device=labels.device) < counts.unsqueeze(1)
        logits = self.output(self._hidden(labels[:, :-1])[is_label])  # padding gets no logits
        return torch.nn.functional.cross_entropy(logits.float(), labels[is_label], reduction="none")

    def log_probability(self, labels: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """log P_ilm of N sentences: [N] float64; labels: [N, U] int64, any valid ones after the end; counts: [N]."""
        at_labels = self(labels)[:, :-1].gather(2, labels.unsqueeze(2)).squeeze(2)
        is_label = torch.arange(labels.shape[1], device=labels.device) < counts.unsqueeze(1)
        return torch.where(is_label, at_labels, 0.0).double().sum(1)

    def _hidden(self, labels: torch.Tensor) -> torch.Tensor:
        """[B, U + 1, H]"""
        start = labels.new_full((labels.shape[0], 1), self.vocabulary_size)
        return self.lstm(self.embedding(torch.cat([start, labels], dim=1)))[0]

    def _by_bundle_name(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {
            f"{PREFIX}embedding.weight": self.embedding.weight,
            f"{PREFIX}output.weight": self.output.weight,
            f"{PREFIX}output.bias": self.output.bias,
        }
        for layer in range(self.lstm.num_layers):
            for name, own in LSTM_NAMES.items():
                tensors[f"{PREFIX}lstm.{layer}.{name}"] = getattr(self.lstm, f"{own}{layer}")
        return tensors


@dataclass(frozen=True)
class IlmTraining:
    """Hyperparameters of `train_ilm`."""

    steps: int = 600
    batch_sentences: int = 64
    peak_learning_rate: float = 3e-3
    warm_up: float = 0.05
    """Share of the steps."""
    kept_share: float = 0.3
    """Share of each batch that is drawn from the sentences to keep."""
    measurements: int = 20
    """Times that the held-out perplexity is measured, in equal distances up to the last step."""
    seed: int = 0
    """Decides the order of sentences in batches."""


class TrainedIlm(NamedTuple):
    """Measurements of `train_ilm`."""

    before: float
    """Perplexity of the held-out sentences that choose the step, before the training."""
    after: float
    """The same at the best step."""
    best_step: int
    """0 where no step was better; then the model is unchanged."""


def train_ilm(
    ilm: InternalLm,
    sentences: Sequence[Sentence],
    held_out: Sequence[Sentence],
    config: IlmTraining,
    kept: Sequence[Sentence] = (),
    report: Callable[[int, float], None] | None = None,
) -> TrainedIlm:
    """Trains the model in place by eq. 3 and leaves it with the weights of its best step on `held_out`.

    kept: sentences of the old domain, against forgetting. report: called with step and perplexity of each measurement.
    ValueError if `sentences` or `held_out` has no labels. Runs on the model's device; batches depend on the seed alone.
    """
    measured = divided(held_out)
    measured = measured[:: math.ceil(len(measured) / _MEASURED_SENTENCES)]
    batches = _batches(divided(sentences), divided(kept) if kept else [], config)
    optimizer = torch.optim.Adam(ilm.parameters(), betas=(0.9, 0.98))
    before = best = perplexity(ilm, measured)
    best_step, best_tensors = 0, ilm.tensors()
    for step in range(1, config.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, config)
        optimizer.zero_grad(set_to_none=True)
        ilm.label_losses(*_padded(next(batches), _device(ilm))).mean().backward()
        torch.nn.utils.clip_grad_norm_(ilm.parameters(), _GRADIENT_NORM)
        optimizer.step()
        if step * config.measurements // config.steps > (step - 1) * config.measurements // config.steps:
            now = perplexity(ilm, measured)
            if report is not None:
                report(step, now)
            if now < best:  # never for NaN
                best, best_step, best_tensors = now, step, ilm.tensors()
    ilm.load_tensors(best_tensors)
    return TrainedIlm(before, best, best_step)


@torch.no_grad()
def perplexity(ilm: InternalLm, sentences: Sequence[Sentence]) -> float:
    """Perplexity per label, without an end of sentence; NaN or infinite where the model diverged."""
    total, count = 0.0, 0
    ordered = sorted(divided(sentences), key=len)  # little padding
    for first in range(0, len(ordered), _SCORED_AT_ONCE):
        losses = ilm.label_losses(*_padded(ordered[first : first + _SCORED_AT_ONCE], _device(ilm)))
        total, count = total + float(losses.sum(dtype=torch.float64)), count + len(losses)
    mean = total / count
    return math.exp(mean) if mean < 700 else math.nan if math.isnan(mean) else math.inf


@torch.no_grad()
def sample_sentences(ilm: InternalLm, lengths: Sequence[int], seed: int) -> list[list[int]]:
    """One sentence of the model's own of each length; a length above `MAX_LABELS` is cut."""
    generator, device = torch.Generator().manual_seed(seed), _device(ilm)
    sampled: list[list[int]] = []
    for first in range(0, len(lengths), _SAMPLED_AT_ONCE):
        wanted = [min(length, MAX_LABELS) for length in lengths[first : first + _SAMPLED_AT_ONCE]]
        last = torch.full((len(wanted), 1), ilm.vocabulary_size, device=device)
        state, columns = None, []
        for _ in range(max(wanted)):
            hidden, state = ilm.lstm(ilm.embedding(last), state)
            probabilities = torch.softmax(ilm.output(hidden[:, -1]).float(), dim=-1).cpu()
            last = torch.multinomial(probabilities, 1, generator=generator).to(device)
            columns.append(last)
        rows = torch.cat(columns, dim=1).tolist()
        sampled += [row[:length] for row, length in zip(rows, wanted, strict=True)]
    return sampled


def every_tenth_held_out(sentences: Sequence[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences to train on, and those that are held out: every tenth, or the last of fewer than ten."""
    first = min(HELD_OUT_EVERY, len(sentences)) - 1
    held_out = sentences[first::HELD_OUT_EVERY]
    return [s for i, s in enumerate(sentences) if (i - first) % HELD_OUT_EVERY], list(held_out)


def divided(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences that have labels, in parts of at most `MAX_LABELS`; ValueError if there is none."""
    parts = [s[at : at + MAX_LABELS] for s in sentences for at in range(0, len(s), MAX_LABELS)]
    if not parts:
        raise ValueError("there are no sentences with labels")
    return parts


def _batches(sentences: list[Sentence], kept: list[Sentence], config: IlmTraining) -> Iterator[list[Sentence]]:
    """Endless batches, drawn with replacement; the share `kept_share` of each from `kept`, if there is any."""
    generator = torch.Generator().manual_seed(config.seed)
    kept_count = round(config.kept_share * config.batch_sentences) if kept else 0
    counts = ((sentences, config.batch_sentences - kept_count), (kept, kept_count))
    while True:
        yield [
            source[int(place)]
            for source, count in counts
            if count
            for place in torch.randint(len(source), (count,), generator=generator)
        ]


def _learning_rate(step: int, config: IlmTraining) -> float:
    """Linear warm-up, then half a cosine; step counts from 1."""
    warm_up = max(config.warm_up * config.steps, 1.0)
    if step <= warm_up:
        return config.peak_learning_rate * step / warm_up
    share = (step - warm_up) / (config.steps - warm_up + 1)
    return config.peak_learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def _padded(sentences: Sequence[Sentence], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels [B, U] and counts [B], int64; U is the longest sentence's."""
    counts = torch.tensor([len(sentence) for sentence in sentences])
    rows = [torch.tensor(sentence, dtype=torch.int64) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device), counts.to(device)


def _device(ilm: InternalLm) -> torch.device:
    return ilm.embedding.weight.device
