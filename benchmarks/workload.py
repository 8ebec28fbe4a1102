"""Workloads of the decoder benchmark: a model, encoder output of streams of equal length, and their phrase lists."""

import random
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.random_models import (
    ENCODER_FRAME_MS,
    ENCODERS,
    NO_ENCODER,
    TRANSDUCERS,
    RandomEncoder,
    RandomTransducer,
    SyntheticTokenizer,
)
from penstock.decoding.greedy.state import GreedyStates, fresh_states
from penstock.decoding.transducer import TransducerNetwork
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import AudioError
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, EncoderConfig
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.phrases import merge_phrases
from penstock.scoring.boosting.tokenization import TokenPhrases, tokenize_phrases
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
_PITCH_HZ, _SYLLABLES_PER_SECOND = 120.0, 4.0


class Workload(NamedTuple):
    """One model with its streams."""

    name: str
    checkpoint: Checkpoint | RandomTransducer
    context: AttentionContext
    stream_s: float
    """Audio seconds of each stream."""
    encoded: torch.Tensor
    """[B, T, D] float32, encoder output of the largest batch; a smaller batch is its first rows."""
    encode: Callable[[int], object] | None
    """Encodes the first n streams chunk by chunk, from log-mel; None without an encoder."""
    encoder: EncoderConfig | None
    """The configuration of the encoder that `encode` runs."""
    note: str
    """What the streams are, for the report."""


class RandomSizes(NamedTuple):
    """Sizes of a random model."""

    transducer: str
    """A key of `TRANSDUCERS`."""
    encoder: str = NO_ENCODER
    """A key of `ENCODERS`, or `NO_ENCODER`."""


def random_workload(
    kind: str, sizes: RandomSizes, batch: int, seconds: float, context: AttentionContext | None, device: str
) -> Workload:
    """Random weights and random encoder output. The random encoder is timed only; its output is not decoded.

    Raises CheckpointError for a context that no encoder can have, if there is to be one.
    """
    context = context or DEFAULT_RANDOM_CONTEXT
    encoder = None if sizes.encoder == NO_ENCODER else RandomEncoder(ENCODERS[sizes.encoder], context)
    source = RandomTransducer(kind, TRANSDUCERS[sizes.transducer])
    encoder_frames = max(1, round(1000.0 * seconds / ENCODER_FRAME_MS))
    encoded = source.frames(batch, encoder_frames).to(device)
    stream_s = encoder_frames * ENCODER_FRAME_MS / 1000.0
    name = f"{kind}, {sizes.transducer}"
    if encoder is None:
        note = "random weights, random encoder output; no encoder, so no total and no share"
        return Workload(name, source, context, stream_s, encoded, None, None, note)
    run = EncoderRun(encoder, context, random_mel(encoder, batch, encoder_frames, device), device)
    note = f"random weights, random encoder output; encoder timed: {sizes.encoder}, random weights too"
    return Workload(name, source, context, stream_s, encoded, run.encode, encoder.config.encoder, note)


def bundle_workload(
    name: str, checkpoint: Checkpoint, context: AttentionContext | None, streams: np.ndarray, device: str, note: str
) -> Workload:
    """A checkpoint's encoder over `streams` [B, samples] float32.

    Raises AudioError if they are too short for one encoder frame.
    """
    config = checkpoint.config
    context = config.encoder.select_context(context)
    run = EncoderRun(checkpoint, context, log_mel(checkpoint, context, streams, device), device)
    stream_s = streams.shape[1] / config.features.sample_rate_hz
    encoded = run.encode(len(streams))
    return Workload(name, checkpoint, context, stream_s, encoded, run.encode, config.encoder, note)


def cut_streams(recording: np.ndarray, batch: int, samples: int) -> np.ndarray:
    """[batch, samples] float32: the recording [n], repeated as needed, from a different offset for each stream."""
    starts = np.arange(batch) * len(recording) // batch
    places = (starts[:, None] + np.arange(samples)) % len(recording)
    return np.ascontiguousarray(recording[places], dtype=np.float32)


def synthetic_sound(samples: int, sample_rate_hz: int) -> np.ndarray:
    """[samples] float32: a buzz in noise that swells at the rate of syllables. A model finds few labels in it."""
    generator, time_s = np.random.default_rng(0), np.arange(samples) / sample_rate_hz
    buzz = sum(np.sin(2 * np.pi * _PITCH_HZ * k * time_s) / k for k in range(1, 20))
    swell = 0.5 - 0.5 * np.cos(2 * np.pi * _SYLLABLES_PER_SECOND * time_s)
    return (0.1 * swell * (buzz + generator.normal(0.0, 0.5, samples))).astype(np.float32)


class MelStreams(NamedTuple):
    """Encoder input of B streams of equal length, on the device."""

    chunks: torch.Tensor
    """[C, B, N, F] float32"""
    last_valid_mel_frames: int
    """Valid frames of the last chunk; the others are whole."""


def log_mel(checkpoint: Checkpoint, context: AttentionContext, streams: np.ndarray, device: str) -> MelStreams:
    """Log-mel of `streams` [B, samples] float32.

    Raises AudioError if they are too short for one encoder frame.
    """
    batch, config = len(streams), checkpoint.config
    tensors = checkpoint.tensors("features.")
    log_mel = LogMel(
        config.features, tensors["features.window"].to(device), tensors["features.mel_filterbank"].to(device)
    )
    extractor = FeatureExtractor(log_mel, chunk_geometry(config, context), batch)
    lengths, are_all = np.full(batch, streams.shape[1]), np.ones(batch, bool)
    found = extractor.extract(np.arange(batch), streams.ravel(), lengths, are_all, are_all)
    if not len(found.mel):
        raise AudioError(f"the streams have {streams.shape[1]} samples, too few for one encoder frame")
    chunks = found.mel.unflatten(0, (batch, -1)).transpose(0, 1).contiguous()  # all streams have the same number
    return MelStreams(chunks, int(found.last_valid_mel_frames[0]))


def random_mel(encoder: RandomEncoder, batch: int, encoder_frames: int, device: str) -> MelStreams:
    """Random log-mel that makes `encoder_frames` in every stream."""
    (context,), factor = encoder.config.encoder.contexts, encoder.config.encoder.subsampling_factor
    whole = context.chunk_encoder_frames
    chunks = -(-encoder_frames // whole)
    mel = encoder.mel(chunks, batch, factor * whole)
    return MelStreams(mel.to(device), factor * (encoder_frames - (chunks - 1) * whole))


class EncoderRun:
    """An encoder with its input."""

    def __init__(self, checkpoint: Checkpoint | RandomEncoder, context: AttentionContext, mel: MelStreams, device: str):
        self._mel = mel.chunks
        count, batch, whole, _ = self._mel.shape
        self._slots = torch.arange(batch, device=device)
        self._encoder = StreamingEncoder(checkpoint, context, batch, device)
        self._valid = [torch.full((batch,), whole, device=device) for _ in range(count)]
        self._valid[-1].fill_(mel.last_valid_mel_frames)
        factor = checkpoint.config.encoder.subsampling_factor
        self._encoder_frames = (count - 1) * whole // factor + -(-mel.last_valid_mel_frames // factor)

    @torch.inference_mode()
    def encode(self, batch: int) -> torch.Tensor:
        """Encodes the first `batch` streams -> [batch, T, D] float32."""
        slots = self._slots[:batch]
        self._encoder.open(slots)
        steps = zip(self._mel, self._valid, strict=True)
        frames = [self._encoder.step(slots, mel[:batch], valid[:batch]).frames for mel, valid in steps]
        return torch.cat(frames, dim=1)[:, : self._encoder_frames].float()


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
