"""Streams of equal length for searches with random weights, their phrase lists and language models."""

import random
from itertools import accumulate
from typing import NamedTuple

import torch

from benchmarks.random_models import (
    ENCODER_FRAME_MS,
    TRANSDUCERS,
    RandomTransducer,
    SyntheticTokenizer,
)
from penstock.decoding.greedy.memory import GreedyStates, fresh_states
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import TokenPhrases, merge_phrases, tokenize_phrases
from penstock.scoring.fusion import Fusion, FusionStates
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.io import TokenNames, find_labels
from penstock.scoring.ngram.lm import NgramLm
from penstock.scoring.ngram.tables import build_tables

DEFAULT_RANDOM_CONTEXT = AttentionContext(70, 13)
PHRASES_PER_STREAM = 100
_BOOST = 1.0
_FAINT_BOOST = 0.001
"""With random weights. It leaves the labels as they are without boosting, so that the same work is compared."""
_LM_ORDER, _LM_WEIGHT, _SENTENCES, _SENTENCE_TOKENS = 4, 0.3, 10_000, 20
_MEMORY_BYTES = DEFAULT_DECODING.phrase_memory_mib * 2**20


class Workload(NamedTuple):
    """One random head with its streams."""

    checkpoint: RandomTransducer
    context: AttentionContext
    stream_s: float
    """Audio seconds of each stream."""
    encoded: torch.Tensor
    """[B, T, D] float32, random encoder output of the largest batch; a smaller batch is its first rows."""


def random_workload(
    kind: str, size: str, batch: int, seconds: float, context: AttentionContext | None, device: str
) -> Workload:
    """kind: of `ALL_KINDS`; size: a key of `TRANSDUCERS`."""
    source = RandomTransducer(kind, TRANSDUCERS[size])
    encoder_frames = max(1, round(1000.0 * seconds / ENCODER_FRAME_MS))
    encoded = source.frames(batch, encoder_frames).to(device)
    return Workload(source, context or DEFAULT_RANDOM_CONTEXT, encoder_frames * ENCODER_FRAME_MS / 1000.0, encoded)


class FusedStreams:
    """Streams with external scores, which `fusion` makes."""

    fusion: Fusion
    _starts: FusionStates

    def start(self, batch: int) -> FusionStates:
        """States and weights of the first `batch` streams, [batch]."""
        return FusionStates(*(field[:batch].clone() for field in self._starts))

    def start_states(self, network: TransducerNetwork, batch: int) -> GreedyStates:
        """Fresh hypotheses of the first `batch` streams."""
        return fresh_states(network, batch)._replace(fusion=self.start(batch))


class GivenLmStreams(FusedStreams):
    """A language model with the same weight for each stream."""

    def __init__(self, lm: NgramLm, streams: int, weight: float, device: str):
        self.fusion = Fusion(lm)
        start = torch.full((streams,), lm.start_state, device=device)
        self._starts = FusionStates(start, torch.zeros_like(start), torch.full((streams,), weight, device=device))


class BoostedStreams(FusedStreams):
    """A different list of `PHRASES_PER_STREAM` synthetic phrases for each stream."""

    def __init__(self, checkpoint: Checkpoint | RandomTransducer, streams: int, device: str):
        """Raises StreamError where the phrases exceed a server's memory for them."""
        is_random = isinstance(checkpoint, RandomTransducer)
        tokenizer = (
            SyntheticTokenizer(checkpoint.config.transducer.vocabulary_size)
            if is_random
            else Tokenizer(checkpoint.tokenizer_path)
        )
        boost, generator = _FAINT_BOOST if is_random else _BOOST, random.Random(0)
        cache = PhraseCache(tokenizer, _MEMORY_BYTES, device)
        starts = [cache.acquire(_draw_phrases(tokenizer, boost, generator)) for _ in range(streams)]
        self.fusion = Fusion(boost=cache.automaton)
        zeros = torch.zeros(streams, dtype=torch.int64, device=device)
        self._starts = FusionStates(zeros, torch.tensor(starts, device=device), zeros.float())


class LmStreams(GivenLmStreams):
    """A language model of synthetic text over the model's labels, whose ranks are distributed as in Zipf's law."""

    def __init__(self, checkpoint: Checkpoint | RandomTransducer, streams: int, device: str):
        size = checkpoint.config.transducer.vocabulary_size
        generator, tokenizer = random.Random(0), SyntheticTokenizer(size)
        weights = list(accumulate(1 / rank for rank in range(1, size)))
        sentences = [
            generator.choices(range(1, size), cum_weights=weights, k=_SENTENCE_TOKENS) for _ in range(_SENTENCES)
        ]
        names = TokenNames(tuple(tokenizer.piece(label).replace(" ", "\u2581") for label in range(size)), 0)
        arpa = build_lm(sentences, names, _LM_ORDER).arpa
        lm = NgramLm(build_tables(arpa, find_labels(arpa.words, names), size), device, TORCH)
        weight = _FAINT_BOOST if isinstance(checkpoint, RandomTransducer) else _LM_WEIGHT
        super().__init__(lm, streams, weight, device)


def _draw_phrases(tokenizer: Tokenizer | SyntheticTokenizer, boost: float, generator: random.Random) -> TokenPhrases:
    texts: dict[str, None] = {}
    while len(texts) < PHRASES_PER_STREAM:
        tokens = generator.choices(range(tokenizer.size), k=generator.randint(3, 8))
        text = " ".join(tokenizer.decode(tokens).split())
        if text and tokenizer.unknown not in tokenizer.encode(text):
            texts[text] = None
    return tokenize_phrases(merge_phrases((text, boost) for text in texts), tokenizer)
