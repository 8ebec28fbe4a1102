"""A synthetic world in which the factorized transducer's claims are measured in minutes (docs/factorized.md).

    python -m scripts.toy_world --seed 7 --mwer --adapt

Sentences come from a Markov source; words sound alike in pairs, so only the words before them tell them apart. Far more
text than speech is known. An RNN-T and factorized transducers are trained on the same frames and searched with ALSD++.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch

from penstock.adaptation.ilm import IlmTraining, InternalLm, every_tenth_held_out, sample_sentences, train_ilm
from penstock.model.config import FACTORIZED, STANDARD, IlmPair, TransducerConfig
from penstock.reporting import commit, date_utc, describe_hardware, markdown_table
from penstock.scoring.automaton import Automaton
from penstock.scoring.fusion_rules import BlankScoring
from recipes.training.encoded import draw_batches
from recipes.training.factorized_head import FactorizedHead
from recipes.training.head import TransducerHead
from recipes.training.head_trainer import HeadTraining, Loss, train_head, transducer_loss_of
from recipes.training.mwer import MwerLoss
from recipes.training.nbest import NBestSearch
from recipes.training.standard_head import StandardHead
from scripts.toy_world_data import D_ENCODED, WORDS, Sounds, World, make_world, text_of
from scripts.toy_world_search import (
    BEAM_SIZE,
    Decoding,
    SubtractedLm,
    model_checkpoint,
    ngram_lm,
    rnnt_ilm,
    tune,
    word_error_rate,
)

EQ4, EQ5 = IlmPair(1.0, 0.0), IlmPair(0.6, 0.6)
PAIRS = tuple(IlmPair(*pair) for pair in ((1, 0.3), (1, 0.2), (0.6, 0), (1.3, 0), (0, 0.8)))
ILM_SHARES = (0.3, 0.6, 0.9)
"""Weight of the RNN-T's own ILM, as a share of that of the language model."""
DROPOUT = 0.1
"""Of the RNN-T's joint. A factorized head has none: with it blanks are less certain, and beta then deletes words."""


@dataclass(frozen=True)
class Sizes:
    """Amounts of data, widths and steps of training."""

    written: int = 30_000
    spoken: int = 600
    tuning: int = 400
    test: int = 1000
    hidden: int = 128
    joint: int = 64
    ilm_steps: int = 2000
    adapt_steps: int = 600
    """Also those of an ILM of the transcripts alone."""
    head_steps: int = 900
    mwer_steps: int = 300
    """Of MWER, and of its control by eq. 1."""
    batch: int = 20


class Report:
    """The rows of the table, printed when they are found and as a table at the end."""

    def __init__(self) -> None:
        self.rows: dict[str, float] = {}
        self._started_s = time.monotonic()

    def add(self, name: str, wer: float) -> None:
        """A row; WER in percent."""
        self.rows[name] = wer
        self.note(f"{name}: {wer:.2f} %")

    def note(self, text: str) -> None:
        """Prints a line behind the time passed."""
        print(f"{time.monotonic() - self._started_s:5.0f} s  {text}", flush=True)

    def table(self) -> str:
        """All rows, with their ratios to eq. 4."""
        rows = [(name, f"{wer:.2f}", f"{wer / self.rows['eq. 4']:.2f}") for name, wer in self.rows.items()]
        return markdown_table(("system", "WER %", "ratio"), rows, left=1)

    def bar(self, name: str, of: str, to: str, limit: float, is_minimum: bool = False) -> str:
        """A claim as a ratio of two rows, beside its limit."""
        ratio = self.rows[of] / self.rows[to]
        holds = ratio >= limit if is_minimum else ratio <= limit
        return (
            f"{'holds' if holds else 'FAILS'}: {name}: {ratio:.3f}, {'at least' if is_minimum else 'at most'} {limit}"
        )


class Experiment:
    """One seed's world, heads and results."""

    def __init__(self, seed: int, sizes: Sizes):
        self.seed, self.sizes, self.report = seed, sizes, Report()
        random = np.random.default_rng(seed)
        self.sounds = Sounds(random)
        amounts = {"spoken": sizes.spoken, "tuning": sizes.tuning, "test": sizes.test}
        self.world = make_world(self.sounds, random, written=sizes.written, **amounts)
        self.other = make_world(self.sounds, random, written=sizes.written, **amounts)
        """Another language of the same sounds, whose speech is not trained on."""
        torch.manual_seed(seed)

    def run(self, mwer: bool, adapt: bool) -> list[str]:
        """Measures everything; returns the claims."""
        self.ilm = self.train_ilm(self.world.written, self.sizes.ilm_steps)
        self.head = self.train_head(FACTORIZED, self.ilm)
        self.measure("eq. 4", self.head, EQ4)
        self.measure("eq. 5 (0.6, 0.6)", self.head, EQ5)
        for pair in PAIRS:
            self.measure(f"({pair.alpha:g}, {pair.beta:g})", self.head, pair)
        self.measure("eq. 5 without length normalization", self.head, EQ5, is_normalized=False)
        self.rnnt()
        transcripts = [utterance.labels for utterance in self.world.spoken]
        self.measure(
            "factorized, ILM from the spoken text alone, eq. 4",
            self.train_head(FACTORIZED, self.train_ilm(transcripts, self.sizes.adapt_steps)),
            EQ4,
        )
        bar = self.report.bar
        claims = [
            bar("eq. 5 / eq. 4", "eq. 5 (0.6, 0.6)", "eq. 4", 0.85),
            bar("eq. 5 / best RNN-T fusion", "eq. 5 (0.6, 0.6)", self.best_fusion(), 0.8),
            bar("without normalization / with", "eq. 5 without length normalization", "eq. 5 (0.6, 0.6)", 1.12, True),
        ]
        return claims + (self.mwer() if mwer else []) + (self.adapt() if adapt else [])

    def measure(
        self, name: str, head: TransducerHead, pair: IlmPair, world: World | None = None, is_normalized: bool = True
    ) -> None:
        """Adds a row, of this world by default."""
        decoding = Decoding(pair, is_normalized)
        self.report.add(name, word_error_rate(head, (world or self.world).test, decoding))

    def best_fusion(self) -> str:
        """The row of the best RNN-T with a language model."""
        return min((n for n in self.report.rows if n.startswith("RNN-T +")), key=self.report.rows.__getitem__)

    def train_ilm(self, sentences: list[list[int]], steps: int) -> InternalLm:
        """On all but every tenth sentence, which choose the step."""
        ilm = InternalLm(WORDS, self.sizes.hidden, 1)
        config = IlmTraining(steps, peak_learning_rate=6e-3, seed=self.seed)
        trained = train_ilm(ilm, *every_tenth_held_out(sentences), config)
        self.report.note(f"ILM of {len(sentences)} sentences: perplexity {trained.after:.2f}, step {trained.best_step}")
        return ilm

    def new_head(self, kind: str) -> TransducerHead:
        """Untrained."""
        sizes = self.sizes
        config = TransducerConfig(WORDS, sizes.hidden, 1, sizes.joint, "tanh", (), kind=kind)
        return FactorizedHead(config, D_ENCODED) if kind == FACTORIZED else StandardHead(config, D_ENCODED, DROPOUT)

    def copy_of(self, head: TransducerHead, ilm: InternalLm | None = None) -> TransducerHead:
        """The same factorized head, perhaps with another ILM."""
        copy = self.new_head(FACTORIZED)
        copy.load_tensors(head.tensors() | (ilm.tensors() if ilm else {}))
        return copy.eval()

    def train_head(self, kind: str, ilm: InternalLm | None = None) -> TransducerHead:
        """By eq. 1 on the spoken utterances, an ILM frozen."""
        head = self.new_head(kind)
        if ilm is not None:
            head.load_tensors(head.tensors() | ilm.tensors())
        self.fit(head, transducer_loss_of(head), HeadTraining(self.sizes.head_steps, peak_learning_rate=5e-3))
        return head

    def fit(self, head: TransducerHead, loss: Loss, training: HeadTraining) -> None:
        """Trains a head on the spoken utterances."""
        batches = draw_batches(self.world.spoken, self.sizes.batch, np.random.default_rng(self.seed))
        losses: list[float] = []
        train_head(head, batches, loss, training, lambda step, value: losses.append(value))
        tenth = max(1, len(losses) // 10)
        first, last = (sum(part) / tenth for part in (losses[:tenth], losses[-tenth:]))
        self.report.note(f"{type(head).__name__}: {training.steps} steps, loss {first:.2f} to {last:.2f}")

    def rnnt(self) -> None:
        """An RNN-T, alone and with a trigram model of the written text."""
        self.rnnt_head = self.train_head(STANDARD)
        self.measure("RNN-T", self.rnnt_head, EQ4)
        fused = self.tuned("RNN-T + LM", {0.0: ngram_lm(self.world.written)}, list(BlankScoring))[1]
        strategies = [fused.strategy.blank_scoring]
        self.share, self.fused = self.tuned("RNN-T + LM - its ILM", self.subtracted(self.world), strategies)

    def subtracted(self, world: World) -> dict[float, Automaton]:
        """Language models of the written text less the RNN-T's ILM, by share."""
        lm, ilm = ngram_lm(world.written), rnnt_ilm(self.rnnt_head)
        return {share: SubtractedLm(lm, ilm, share) for share in ILM_SHARES}

    def tuned(self, name: str, lms: dict[float, Automaton], strategies: list[BlankScoring]) -> tuple[float, Decoding]:
        """Adds a row with the weights that are best on the utterances for tuning, which it returns."""
        share, decoding = tune(self.rnnt_head, self.world.tuning, lms, strategies)
        scoring = decoding.strategy.blank_scoring.value
        self.report.note(f"{name}: weight {decoding.lm_weight}, share of the ILM {share}, blank {scoring}")
        self.report.add(name, word_error_rate(self.rnnt_head, self.world.test, decoding))
        return share, decoding

    def mwer(self) -> list[str]:
        """MWER of the pair (0.6, 0.6), and as many steps of eq. 1."""
        head, control = self.copy_of(self.head), self.copy_of(self.head)
        training = HeadTraining(self.sizes.mwer_steps, peak_learning_rate=5e-4)
        search = NBestSearch(model_checkpoint(head).config, head, BEAM_SIZE, EQ5)
        for each, loss in ((head, MwerLoss(head, search, text_of)), (control, transducer_loss_of(control))):
            torch.manual_seed(self.seed)  # of dropout
            self.fit(each, loss, training)
        for name, each in (("MWER", head), ("control", control)):
            self.measure(f"{name}, without normalization", each, EQ5, is_normalized=False)
            self.measure(f"{name}, with normalization", each, EQ5)
        before, bar = "eq. 5 without length normalization", self.report.bar
        return [
            bar("MWER / before, without normalization", "MWER, without normalization", before, 0.88),
            bar("MWER / before, with normalization", "MWER, with normalization", "eq. 5 (0.6, 0.6)", 1.03),
            bar("control / before", "control, without normalization", before, 1.05),
            bar("control / before", "control, without normalization", before, 0.95, True),
        ]

    def adapt(self) -> list[str]:
        """The ILM adapted to another language's text, with and without sentences to keep; RNN-T fusion beside it."""
        new, old, sizes = self.other, self.world, self.sizes
        self.measure("other domain: not adapted, eq. 4", self.head, EQ4, new)
        self.measure("other domain: not adapted, eq. 5", self.head, EQ5, new)
        lengths = [len(sentence) for sentence in islice(cycle(new.written), 4000)]
        kept = {"text alone": [], "30 % old text": old.written, "30 % sampled": sample_sentences(self.ilm, lengths, 0)}
        for name, sentences in kept.items():
            ilm = InternalLm.from_tensors(self.ilm.tensors())
            train_ilm(
                ilm, *every_tenth_held_out(new.written), IlmTraining(sizes.adapt_steps, seed=self.seed), sentences
            )
            adapted = self.copy_of(self.head, ilm)
            self.measure(f"other domain: {name}, eq. 5", adapted, EQ5, new)
            self.measure(f"old domain: {name}, eq. 5", adapted, EQ5, old)
        decoding = self.fused._replace(lm=self.subtracted(new)[self.share])  # no speech of the domain to tune on
        name = "other domain: RNN-T + its LM - ILM, weights of the old domain"
        self.report.add(name, word_error_rate(self.rnnt_head, new.test, decoding))
        claims = []
        for name, limit in (("30 % old text", 1.5), ("30 % sampled", 1.7)):
            at, before = f"domain: {name}, eq. 5", "other domain: not adapted, eq. 4"
            claims.append(self.report.bar(f"adapted / not, {name}", f"other {at}", before, 0.35))
            claims.append(self.report.bar(f"old domain after / before, {name}", f"old {at}", "eq. 5 (0.6, 0.6)", limit))
        return claims


def main(arguments: list[str] | None = None, sizes: Sizes | None = None) -> None:
    """Command line; sizes: for a shorter run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mwer", action="store_true", help="also MWER training, and its control")
    parser.add_argument("--adapt", action="store_true", help="also adaptation to another language's text")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    experiment = Experiment(chosen.seed, sizes or Sizes())
    claims = experiment.run(chosen.mwer, chosen.adapt)
    print(f"\nseed {chosen.seed}; {describe_hardware()}; one thread; {date_utc()}; commit {commit()}\n")
    print(experiment.report.table(), *claims, sep="\n")


if __name__ == "__main__":
    main()
