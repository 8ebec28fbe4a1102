"""Trains a Transducer head on the frozen encoder of a bundle, in minutes and without NeMo (docs/factorized.md).

    python -m recipes.training.train_head --model models/an4-rnnt-hybrid --train an4/train.jsonl --out build/an4-ft
    python -m recipes.training.train_head --init build/an4-ft --epochs 0 --mwer 90 --model ... --train ... --out ...

Frames are computed once: of the recordings and of augmented copies, in the given contexts. A tenth of the
speakers is held out of the training; the pair of weights of the internal language model is chosen on them.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from penstock.adaptation.ilm import IlmTraining, InternalLm, every_tenth_held_out, train_ilm
from penstock.decoding.transducer.interface import head_of
from penstock.errors import CheckpointError, CorpusError, PenstockError
from penstock.evaluation.errors import EditCounts, compare
from penstock.model.bundle import Checkpoint
from penstock.model.config import (
    FACTORIZED,
    MAX_ILM_ALPHA,
    MAX_ILM_BETA,
    STANDARD,
    IlmPair,
    TransducerConfig,
    parse_context,
)
from penstock.model.new_bundle import check_new_bundle
from penstock.model.tokenizer import Tokenizer
from recipes.training.augmentation import AugmentationConfig, Augmenter
from recipes.training.batches import Recording, read_recordings
from recipes.training.encoded import EncodedBatch, EncodedUtterance, FrozenEncoder, collate, draw_batches
from recipes.training.heads import FactorizedHead, StandardHead, TransducerHead, write_head_bundle
from recipes.training.mwer import MwerLoss, NBestSearch
from recipes.training.sounds import sound_effect
from recipes.training.trainer import WeightAverage

Loss = Callable[[EncodedBatch], torch.Tensor]
"""The scalar loss of a batch."""
HEADS = {STANDARD: StandardHead, FACTORIZED: FactorizedHead}
PAIRS = tuple(
    IlmPair(*pair) for pair in ((1, 0), (1, 0.2), (1, 0.3), (0.6, 0), (0.6, 0.2), (0.6, 0.4), (0.6, 0.6), (0.3, 0.4))
)
"""The grid of which the default pair is chosen."""
_EFFECTS = 100
_HELD_OUT_EVERY = 10
_MIN_MEL_FRAMES = 16
_BEAM_SIZE = 4


@dataclass(frozen=True)
class HeadTraining:
    """Hyperparameters of one run."""

    steps: int
    peak_learning_rate: float = 2e-3
    warm_up: float = 0.05
    """Share of the steps; then half a cosine to a hundredth of the peak."""
    weight_decay: float = 1e-2
    gradient_norm: float = 2.0
    trains_ilm: bool = False
    """False: the internal language model is frozen, its weights keep every bit."""
    averaged: float = 0.2
    """Share of the steps that the moving average of the weights is about. The average is the result."""


def transducer_loss_of(head: TransducerHead, ilm_weight: float = 0.0) -> Loss:
    """Eq. 1 + ilm_weight * eq. 3 of each utterance, divided by the root of its label count plus one, averaged over the
    batch.

    ilm_weight: 0 without an internal language model, else ValueError.
    """
    ilm = head.ilm
    if ilm_weight and ilm is None:
        raise ValueError(f"ilm_weight: {ilm_weight:g}; accepted: 0, the head has no internal language model")

    def loss(batch: EncodedBatch) -> torch.Tensor:
        found = head.losses(batch.encoded, batch.frame_counts, batch.labels, batch.label_counts)
        if ilm_weight and ilm is not None:
            found = found - ilm_weight * ilm.log_probability(batch.labels, batch.label_counts)
        return (found / (batch.label_counts + 1).sqrt()).mean()

    return loss


def train_head(
    head: TransducerHead,
    batches: Iterator[EncodedBatch],
    loss: Loss,
    config: HeadTraining,
    report: Callable[[int, float], None] = lambda step, value: None,
) -> None:
    """Trains the head's weights that require a gradient; it is left with their moving average, in evaluation mode.

    report: called with step and loss of each step. A step with a non-finite gradient is skipped.
    """
    if head.ilm is not None:
        head.ilm.requires_grad_(config.trains_ilm)
    trained = [p for p in head.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, betas=(0.9, 0.98), weight_decay=config.weight_decay)
    average = WeightAverage(head, 1 - 1 / max(config.averaged * config.steps, 1))
    head.train()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, config)
        optimizer.zero_grad(set_to_none=True)
        value = loss(next(batches))
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, config.gradient_norm)
        if bool(torch.isfinite(norm)):
            optimizer.step()
            average.update(head)
        report(step + 1, float(value.detach()))
    average.swap(head)
    head.eval()


def _learning_rate(step: int, config: HeadTraining) -> float:
    """The rate in the step with this number, from 0."""
    warm_up = config.warm_up * config.steps
    if step < warm_up:
        return config.peak_learning_rate * (step + 1) / (warm_up + 1)
    share = (step - warm_up) / max(config.steps - warm_up, 1)
    return config.peak_learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))


class Corpus(NamedTuple):
    """Encoded utterances."""

    train: list[EncodedUtterance]
    held_out: list[EncodedUtterance]
    """Augmented copies of the speakers that are not trained on."""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        train(_arguments(arguments), " ".join(["recipes.training.train_head", *arguments]))
    except (PenstockError, OSError, ValueError) as error:
        print(f"train_head: error: {error}", file=sys.stderr)
        return 1
    return 0


def train(chosen: argparse.Namespace, command: str) -> None:
    """Prepares the frames, trains, chooses the pair, writes the bundle; command: for its `source`."""
    check_new_bundle(chosen.out, chosen.force)
    torch.manual_seed(chosen.seed)
    torch.set_num_threads(chosen.threads)
    checkpoint = Checkpoint(chosen.model)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    corpus = load_corpus(chosen, checkpoint, tokenizer)
    head = make_head(chosen, checkpoint, corpus, tokenizer)
    batches = draw_batches(corpus.train, chosen.batch, np.random.default_rng(chosen.seed))
    steps = round(chosen.epochs * len(corpus.train) / chosen.batch)
    if steps:
        training = HeadTraining(steps, chosen.learning_rate, trains_ilm=chosen.ilm_weight > 0)
        loss = transducer_loss_of(head, chosen.ilm_weight)
        train_head(head, batches, loss, training, Progress("loss", steps))
    pair = choose_pair(checkpoint, head, tokenizer, corpus.held_out) if chosen.pair is None else chosen.pair
    if chosen.mwer:
        search = NBestSearch(checkpoint.config, head, _BEAM_SIZE, pair)
        loss = MwerLoss(head, search, tokenizer.decode)
        training = HeadTraining(chosen.mwer, chosen.mwer_learning_rate)
        train_head(head, batches, loss, training, Progress("expected errors less their mean", chosen.mwer))
        print(loss.summary())
    source = {"file": chosen.model.name, "class": type(head).__name__, "command": command}
    greedy = pair if chosen.mwer else None  # after MWER the weights belong to their pair, also in greedy search
    write_head_bundle(
        chosen.out, checkpoint, head, source, beam_pair=pair, greedy_pair=greedy, half=chosen.half, replace=chosen.force
    )
    print(f"wrote {chosen.out}")


def load_corpus(chosen: argparse.Namespace, checkpoint: Checkpoint, tokenizer: Tokenizer) -> Corpus:
    """The encoded utterances, from `--frames` if that file exists."""
    if chosen.frames and chosen.frames.exists():
        train, held_out = torch.load(chosen.frames, weights_only=True)
        return Corpus([EncodedUtterance(*u) for u in train], [EncodedUtterance(*u) for u in held_out])
    recordings = [r for path in chosen.train for r in read_recordings(path)]
    speakers = sorted({r.speaker for r in recordings})
    if len(speakers) < 2:
        raise CorpusError(
            "--train: all recordings are of one speaker; accepted: of several, a tenth of whom is held out"
        )
    speakers = speakers[::_HELD_OUT_EVERY]
    apart = [r for r in recordings if r.speaker in speakers]
    rest = [r for r in recordings if r.speaker not in speakers]
    random = np.random.default_rng(chosen.seed)
    train, held_out = [], []
    model = checkpoint.config.encoder
    contexts = list(map(model.select_context, chosen.context or model.contexts))
    for context in [None] if model.is_offline else contexts:
        encoder = FrozenEncoder(checkpoint, context)
        noises = [encoder.log_mel(sound_effect(random)) for _ in range(_EFFECTS)]
        augmenter = Augmenter(AugmentationConfig(), noises, random)
        progress = Progress(f"encoded at {context or 'full attention'}", (1 + chosen.copies) * len(rest) + len(apart))
        for copy in range(1 + chosen.copies):
            train += encode(rest, encoder, augmenter if copy else None, tokenizer, progress)
        held_out += encode(apart, encoder, augmenter, tokenizer, progress)
    if chosen.frames:
        torch.save(([tuple(u) for u in train], [tuple(u) for u in held_out]), chosen.frames)
    return Corpus(train, held_out)


def encode(
    recordings: Sequence[Recording],
    encoder: FrozenEncoder,
    augmenter: Augmenter | None,
    tokenizer: Tokenizer,
    progress: "Progress",
) -> list[EncodedUtterance]:
    """The recordings, augmented if there is an augmenter; those of less than a few frames are left out."""
    mels, texts = [], []
    for recording in recordings:
        mel = encoder.log_mel(recording.samples)
        if augmenter is not None:
            mel = augmenter.add_noise(augmenter.speaker(mel)).astype(np.float32)
        if len(mel) >= _MIN_MEL_FRAMES:
            mels.append(mel)
            texts.append(" ".join(recording.words))
    encoded = encoder.encode(mels, progress.add)
    return [EncodedUtterance(frames, tokenizer.encode(text), text) for frames, text in zip(encoded, texts, strict=True)]


def make_head(
    chosen: argparse.Namespace, checkpoint: Checkpoint, corpus: Corpus, tokenizer: Tokenizer
) -> TransducerHead:
    """The head of `--init`, or a new one of `--kind`, whose internal language model is trained on text first.

    Raises CheckpointError for a bundle without a transducer, or an initial one for another encoder.
    """
    d_model = checkpoint.config.encoder.d_model
    if chosen.init:
        initial = Checkpoint(chosen.init)
        config, found = head_of(initial), (initial.config.encoder.d_model, initial.config.vocabulary_size)
        wanted = (d_model, checkpoint.config.vocabulary_size)
        if found != wanted:
            raise CheckpointError(
                f"--init: the head is for frames of width {found[0]} and {found[1]} labels; accepted: {wanted[0]} and "
                f"{wanted[1]}, as in --model"
            )
        head = HEADS[config.kind](config, d_model, chosen.dropout)
        head.load_tensors(initial.tensors(*head.prefixes))
        return head
    sizes = head_of(checkpoint)
    config = TransducerConfig(
        sizes.vocabulary_size, sizes.predictor_hidden, sizes.predictor_layers, sizes.joint_hidden,
        "tanh" if chosen.kind == FACTORIZED else sizes.joint_activation, (), sizes.max_symbols, chosen.kind,
    )  # fmt: skip
    head = HEADS[chosen.kind](config, d_model, chosen.dropout)
    if head.ilm is not None:
        pretrain(head.ilm, chosen, corpus, tokenizer)
    return head


def pretrain(ilm: InternalLm, chosen: argparse.Namespace, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Eq. 3 on `--ilm-text`, or on the transcripts of the training part; every tenth sentence is held out."""
    texts = list(dict.fromkeys(u.reference for u in corpus.train))
    if chosen.ilm_text:
        texts = [line for path in chosen.ilm_text for line in path.read_text(encoding="utf-8").splitlines()]
    sentences = [tokenizer.encode(text) for text in texts]
    found = train_ilm(ilm, *every_tenth_held_out(sentences), IlmTraining(seed=chosen.seed))
    print(
        f"internal language model: held-out perplexity {found.before:.1f} -> {found.after:.1f} of {len(texts)} "
        f"sentences, step {found.best_step}"
    )


def choose_pair(
    checkpoint: Checkpoint, head: TransducerHead, tokenizer: Tokenizer, held_out: Sequence[EncodedUtterance]
) -> IlmPair:
    """The pair of `PAIRS` with the fewest word errors on the held-out part; (1, 0) without a language model."""
    if head.ilm is None:
        return IlmPair()
    errors = {}
    for pair in PAIRS:
        rate = word_error_rate(
            NBestSearch(checkpoint.config, head, _BEAM_SIZE, pair, is_normalized=True), tokenizer, held_out
        )
        errors[pair] = rate
        print(f"alpha {pair.alpha:g} beta {pair.beta:g}: {100 * rate:.1f} % WER on the held-out speakers")
    return min(errors, key=errors.__getitem__)


def word_error_rate(search: NBestSearch, tokenizer: Tokenizer, utterances: Sequence[EncodedUtterance]) -> float:
    """WER of the best hypotheses, 0 to 1 and more."""
    counts = EditCounts()
    ordered = sorted(utterances, key=lambda u: len(u.frames))
    for at in range(0, len(ordered), 32):
        batch = collate(ordered[at : at + 32])
        for reference, labels in zip(batch.references, search(batch.encoded, batch.frame_counts).best(), strict=True):
            counts += compare(reference, tokenizer.decode(labels)).words
    return counts.rate or 0.0


class Progress:
    """Prints a value, or how much is done, about every ten seconds."""

    def __init__(self, name: str, total: int):
        self._name, self._total, self._done = name, total, 0
        self._values: list[float] = []
        self._printed_s = self._began_s = time.monotonic()

    def __call__(self, step: int, value: float) -> None:
        """Reports a step's value."""
        self._values.append(value)
        self._print(step, f"{self._name} {sum(self._values) / len(self._values):.3f}")

    def add(self, count: int) -> None:
        """Reports that `count` more are done."""
        self._done += count
        self._print(self._done, self._name)

    def _print(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now - self._printed_s > 10 or done == self._total:
            print(f"{done} of {self._total}, {now - self._began_s:.0f} s: {text}", flush=True)
            self._printed_s, self._values = now, []


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="bundle with the encoder")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="manifests to train on")
    parser.add_argument("--out", type=Path, required=True, help="the new bundle")
    parser.add_argument("--force", action="store_true", help="replace --out if it is a bundle")
    parser.add_argument("--half", action="store_true", help="store float16 weights")
    parser.add_argument("--kind", choices=HEADS, default=FACTORIZED)
    parser.add_argument("--init", type=Path, help="bundle whose head is trained further")
    parser.add_argument("--ilm-text", type=Path, nargs="+", help="text for the language model, one sentence per line")
    parser.add_argument(
        "--ilm-weight", type=_weight, default=0.0, metavar="LAMBDA",
        help="train the language model with the head, by eq. 1 + LAMBDA eq. 3; 0 by default: frozen",
    )  # fmt: skip
    parser.add_argument("--frames", type=Path, help="file of the encoder frames, made if it does not exist")
    parser.add_argument("--context", type=parse_context, nargs="+", metavar="L,R", help="contexts; all by default")
    parser.add_argument("--copies", type=int, default=1, help="augmented copies in every context")
    parser.add_argument("--epochs", type=float, default=5.0, help="epochs of eq. 1, over all copies in all contexts")
    parser.add_argument("--batch", type=int, default=16, help="utterances per step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--pair",
        type=_pair,
        metavar="ALPHA,BETA",
        help="weights of the internal language model; by default chosen on held-out speakers",
    )
    parser.add_argument("--mwer", type=int, default=0, metavar="STEPS", help="steps of MWER after that")
    parser.add_argument("--mwer-learning-rate", type=float, default=2e-4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def _weight(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}; accepted: a number from 0")


def _pair(text: str) -> IlmPair:
    accepted = f"accepted: two numbers, from 0 to {MAX_ILM_ALPHA:g} and from 0 to {MAX_ILM_BETA:g}, such as 0.6,0.4"
    try:
        pair = IlmPair(*map(float, text.split(",", maxsplit=1)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; {accepted}") from None
    if "," not in text or not (0 <= pair.alpha <= MAX_ILM_ALPHA and 0 <= pair.beta <= MAX_ILM_BETA):
        raise argparse.ArgumentTypeError(f"{text!r}; {accepted}")
    return pair


if __name__ == "__main__":
    sys.exit(main())
