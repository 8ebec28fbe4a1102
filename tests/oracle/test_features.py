"""Streaming features against NeMo's preprocessor on the whole signal."""

import random

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch

from penstock.config import AttentionContext
from penstock.features import FeatureExtractor, LogMel
from penstock.stages.features import chunk_geometry
from tests.oracle.subjects import SUBJECT_NAMES, Piece, Subject, random_turns, speech, subject

pytestmark = pytest.mark.oracle
TOLERANCE = 1e-5


def extractor_of(one: Subject, context: AttentionContext, slots: int) -> FeatureExtractor:
    config, tensors = one.checkpoint.config, one.checkpoint.tensors("features.")
    log_mel = LogMel(config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    return FeatureExtractor(log_mel, chunk_geometry(config, context), slots, torch.device("cpu"))


def stream_features(
    one: Subject, context: AttentionContext, signals: list[np.ndarray], turns: list[list[Piece]]
) -> list[torch.Tensor]:
    """Real frames [N, F] of each signal."""
    extractor = extractor_of(one, context, len(signals))
    frames: list[list[torch.Tensor]] = [[] for _ in signals]
    for turn in turns:
        for piece in turn:
            if piece.is_start:
                extractor.open(piece.stream)
        chunks = extractor.extract(
            [piece.stream for piece in turn],
            [signals[piece.stream][piece.begin : piece.end] for piece in turn],
            [piece.is_end for piece in turn],
        )
        for piece, (mel, last_valid, _) in zip(turn, chunks, strict=True):
            unfilled = mel.shape[1] - last_valid if len(mel) else 0
            rows = mel.flatten(0, 1)
            frames[piece.stream].append(rows[: len(rows) - unfilled])
    return [torch.cat(rows)[extractor.geometry.virtual_mel_frames :] for rows in frames]


def random_cuts(signals: tuple[np.ndarray, ...], count: int, seed: int) -> list[np.ndarray]:
    """Pieces of `signals` of any length, very short ones included."""
    generator = random.Random(seed)
    cuts = []
    for _ in range(count):
        samples = generator.choice(signals)
        length = int(len(samples) ** generator.uniform(0.3, 1.0))
        begin = generator.randrange(len(samples) - length + 1)
        cuts.append(samples[begin : begin + length])
    return cuts


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_random_pieces_of_many_streams(name: str, at_once: int):
    one = subject(name)
    signals = random_cuts(one.signals + speech(), 40, seed=at_once)
    for context in one.contexts:
        turns = list(random_turns([len(samples) for samples in signals], at_once, seed=context.right))
        for samples, found in zip(signals, stream_features(one, context, signals, turns), strict=True):
            assert_same(found, one.mel(samples))


@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_one_sample_a_piece(name: str):
    one = subject(name)
    samples = speech()[0][20000:28001]
    turns = [[Piece(0, i, i + 1, i == 0, i + 1 == len(samples))] for i in range(len(samples))]
    assert_same(stream_features(one, one.contexts[0], [samples], turns)[0], one.mel(samples))


@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_every_utterance_in_one_piece(name: str):
    one = subject(name)
    signals = [*one.signals, *speech()]
    turns = [[Piece(i, 0, len(samples), True, True) for i, samples in enumerate(signals)]]
    for samples, found in zip(signals, stream_features(one, one.contexts[0], signals, turns), strict=True):
        assert_same(found, one.mel(samples))
