"""Recognition in the toy world: ALSD++ over whole utterances, and language model fusion for its RNN-T."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from penstock.decoding.beam.search import BeamSearch
from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.beam.state import fresh_states
from penstock.decoding.networks import open_network
from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig, FeatureConfig, IlmPair, ModelConfig, TransducerConfig
from penstock.scoring.automaton import AllTransitions, Automaton, Transitions
from penstock.scoring.fusion import Fusion, FusionStates
from penstock.scoring.fusion_rules import BlankScoring, FusionStrategy
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.io import TokenFormat, TokenNames, find_labels
from penstock.scoring.ngram.lm import NgramLm
from penstock.scoring.ngram.tables import build_tables
from recipes.training.encoded import EncodedUtterance, collate
from recipes.training.head import TransducerHead
from scripts.toy_world_data import D_ENCODED, WORDS, text_of

BEAM_SIZE = 5
LM_WEIGHTS = (0.2, 0.35, 0.5, 0.7, 1.0)
_UTTERANCES = 500
"""In one batch."""
_HISTORIES = (WORDS + 1) ** 3


def model_config(transducer: TransducerConfig) -> ModelConfig:
    """The head's configuration, with features and an encoder that are not used."""
    features = FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24)
    encoder = EncoderConfig(80, 1, D_ENCODED, 1, 4, 3, True, True, False, 8, 4, ((2, 1),))
    return ModelConfig(features, encoder, transducer)


@dataclass(frozen=True)
class _Weights:
    """What a search reads of a checkpoint, with a head's weights."""

    head: TransducerHead
    directory: str = "toy world"

    @property
    def config(self) -> ModelConfig:
        return model_config(self.head.config)

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in self.head.tensors().items() if name.startswith(prefixes)}


def model_checkpoint(head: TransducerHead) -> Checkpoint:
    """The head's live weights as a search reads them."""
    return cast(Checkpoint, _Weights(head))


class Decoding(NamedTuple):
    """How a head is searched."""

    pair: IlmPair = IlmPair()
    is_normalized: bool = True
    lm: Automaton | None = None
    lm_weight: float = 0.0
    strategy: FusionStrategy = FusionStrategy()


@torch.inference_mode()
def recognize(head: TransducerHead, utterances: Sequence[EncodedUtterance], decoding: Decoding) -> list[list[int]]:
    """The labels of each utterance's best hypothesis."""
    network = open_network(model_checkpoint(head))
    search = BeamSearch(
        network, fusion=Fusion(decoding.lm), strategy=decoding.strategy, is_normalized=decoding.is_normalized
    )
    found: list[list[int]] = []
    for first in range(0, len(utterances), _UTTERANCES):
        batch = collate(utterances[first : first + _UTTERANCES])
        count = len(batch.references)
        fusion = None
        if decoding.lm is not None:
            start = torch.full((count,), decoding.lm.start_state)
            fusion = FusionStates(start, torch.zeros_like(start), torch.full((count,), decoding.lm_weight))
        sizes = BeamSizes(BEAM_SIZE, 0, 2 * batch.encoded.shape[1])
        ilm = network.ilm_weights([decoding.pair] * count)
        states = fresh_states(network, count, sizes, fusion=fusion, ilm=ilm)
        frames = network.project_encoder(batch.encoded)
        update, states = search.decode(frames, batch.frame_counts, torch.ones(count, dtype=torch.bool), states)
        best = search.n_best(states).unstable
        for row in range(count):
            stable = update.stable.tokens.labels[row, : int(update.stable.lengths[row])].tolist()
            found.append(stable + best.tokens.labels[row, 0, : int(best.lengths[row, 0])].tolist())
    return found


def word_error_rate(head: TransducerHead, utterances: Sequence[EncodedUtterance], decoding: Decoding) -> float:
    """In percent."""
    found = recognize(head, utterances, decoding)
    edits = sum(edit_distance(u.labels, labels) for u, labels in zip(utterances, found, strict=True))
    return 100 * edits / sum(len(utterance.labels) for utterance in utterances)


def edit_distance(reference: Sequence[int], found: Sequence[int]) -> int:
    """Levenshtein distance."""
    row = list(range(len(found) + 1))
    for i, label in enumerate(reference, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (label != other))
    return row[-1]


class SubtractedLm:
    """log p_LM - share * log p_ILM, with the ILM that an RNN-T has learned from its transcripts.

    That is the softmax over labels of the joint without the encoder (HAT), here after the last three labels alone.
    """

    def __init__(self, lm: NgramLm, ilm: torch.Tensor, share: float):
        """ilm: from `rnnt_ilm`."""
        self.vocabulary_size = WORDS
        self._lm, self._table = lm, -share * ilm
        self.start_state = lm.start_state * _HISTORIES + _HISTORIES - 1

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        """See `Automaton`."""
        histories = states % _HISTORIES
        lm = self._lm.advance(states // _HISTORIES, labels)
        following = histories % (WORDS + 1) ** 2 * (WORDS + 1) + labels
        return Transitions(lm.scores + self._table[histories, labels], lm.next_states * _HISTORIES + following)

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        """See `Automaton`."""
        scores = self._lm.score_all(states // _HISTORIES).scores + self._table[states % _HISTORIES]
        return AllTransitions(scores, lambda labels: self.advance(states, labels).next_states)

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """See `Automaton`."""
        return self._lm.final_scores(states // _HISTORIES)


@torch.inference_mode()
def rnnt_ilm(head: TransducerHead) -> torch.Tensor:
    """log p_ILM [histories, V]; a history is the last three labels as digits, `WORDS` where there is none."""
    network = open_network(model_checkpoint(head))
    table = torch.zeros(_HISTORIES, WORDS)
    frame = network.project_encoder(torch.zeros(1, 1, D_ENCODED))[0]
    prediction, histories = network.start(1), torch.tensor([_HISTORIES - 1])
    for length in range(4):
        scores = network.score(frame, prediction.projected).labels
        table[histories] = torch.log_softmax(scores, dim=1)
        if length < 3:
            labels = torch.arange(WORDS).repeat(len(histories))
            rows = torch.arange(len(histories)).repeat_interleave(WORDS)
            histories = histories[rows] % (WORDS + 1) ** 2 * (WORDS + 1) + labels
            prediction = network.predict(labels, tuple(state[rows] for state in prediction.state))
    return table


def ngram_lm(sentences: list[list[int]]) -> NgramLm:
    """A trigram model."""
    names = TokenNames(tuple(text_of([label]) for label in range(WORDS)), -1)
    arpa = build_lm(sentences, names, 3, []).arpa
    return NgramLm(build_tables(arpa, find_labels(arpa.words, names, TokenFormat.PIECES), WORDS))


def tune(
    head: TransducerHead,
    utterances: Sequence[EncodedUtterance],
    lms: dict[float, Automaton],
    strategies: Iterable[BlankScoring] = BlankScoring,
) -> tuple[float, Decoding]:
    """The best of all weights and strategies; lms: by share of the ILM. Returns the share and the decoding."""
    tried = {}
    for strategy in map(FusionStrategy, strategies):
        for share, lm in lms.items():
            for weight in LM_WEIGHTS:
                decoding = Decoding(lm=lm, lm_weight=weight, strategy=strategy)
                tried[share, decoding] = word_error_rate(head, utterances, decoding)
    return min(tried, key=tried.__getitem__)
