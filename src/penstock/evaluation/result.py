"""PassResult: one pass over all utterances, with one context and one decoder, and what came of each."""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.config import AttentionContext
from penstock.errors import PenstockError
from penstock.evaluation.decoder_choice import DecoderChoice
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.outcome import Outcome
from penstock.evaluation.score import Score, summarise
from penstock.evaluation.word_errors import UtteranceErrors, compare


@dataclass(frozen=True)
class Setting:
    """What distinguishes a pass from the others. Both None: a server's own, which it does not tell."""

    context: AttentionContext | None = None
    decoder: DecoderChoice | None = None

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.context, self.decoder) if part is not None) or "server"


@dataclass(frozen=True)
class PassResult:
    """`outcomes` and `errors` are in the order of the utterances."""

    setting: Setting
    elapsed_s: float
    """From the first utterance's opening to the last text, reading of files included, loading of the model not."""
    outcomes: list[Outcome]
    errors: list[UtteranceErrors | None]
    """None for an utterance that failed."""
    score: Score
    """Of those that did not fail."""

    @property
    def failures(self) -> list[str]:
        """Why utterances were not recognised."""
        return [outcome.error for outcome in self.outcomes if outcome.error]

    @property
    def real_time_factor(self) -> float:
        """RTFx: seconds of recognised audio a second."""
        return (self.score.speech.audio_s + self.score.speech_free.audio_s) / self.elapsed_s


def run_pass(setting: Setting, utterances: Sequence[Utterance], outcomes: Iterable[Outcome]) -> PassResult:
    """Takes in the outcomes, in whatever order they come; a progress bar on stderr if that is a terminal.

    PenstockError if every utterance fails.
    """
    from tqdm import tqdm  # here, so that everything else works without it

    started = time.perf_counter()
    bar = tqdm(outcomes, str(setting), len(utterances), file=sys.stderr, disable=None, leave=False, unit="utterance")
    gathered = sorted(bar, key=lambda outcome: outcome.index)
    elapsed_s = time.perf_counter() - started
    errors = [
        None if outcome.error else compare(utterance.reference, outcome.text)
        for utterance, outcome in zip(utterances, gathered, strict=True)
    ]
    recognised = [(utterance, error) for utterance, error in zip(utterances, errors, strict=True) if error]
    if not recognised:
        raise PenstockError(f"no utterance could be recognised; the first: {gathered[0].error}")
    return PassResult(setting, elapsed_s, gathered, errors, summarise(*map(list, zip(*recognised, strict=True))))
