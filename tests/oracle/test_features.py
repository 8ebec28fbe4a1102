"""Streaming features against NeMo's preprocessor on the whole signal."""

import random

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch

from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.model.config import AttentionContext
from tests.helpers.oracle.models import MODEL_NAMES, OracleModel, Request, oracle_model, random_batches, speech
from tests.helpers.reference.log_mel import FLOAT32, FLOAT64, LogMelReference, log_mel_reference
from tests.helpers.streaming import extract

pytestmark = pytest.mark.oracle


def extractor_of(one: OracleModel, context: AttentionContext, slots: int) -> FeatureExtractor:
    config, tensors = one.checkpoint.config, one.checkpoint.tensors("features.")
    log_mel = LogMel(config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    return FeatureExtractor(log_mel, chunk_geometry(config, context), slots)


def stream_features(
    one: OracleModel, context: AttentionContext, signals: list[np.ndarray], batches: list[list[Request]]
) -> list[torch.Tensor]:
    """Real frames [N, F] of each signal."""
    extractor = extractor_of(one, context, len(signals))
    frames: list[list[torch.Tensor]] = [[] for _ in signals]
    for batch in batches:
        chunks = extract(
            extractor,
            [request.stream for request in batch],
            [signals[request.stream][request.begin : request.end] for request in batch],
            [request.is_end for request in batch],
            [request.is_start for request in batch],
        )
        for request, (mel, last_valid, _) in zip(batch, chunks, strict=True):
            unfilled = mel.shape[1] - last_valid if len(mel) else 0
            rows = mel.flatten(0, 1)
            frames[request.stream].append(rows[: len(rows) - unfilled])
    return [torch.cat(rows)[extractor.geometry.virtual_mel_frames :] for rows in frames]


def random_cuts(signals: tuple[np.ndarray, ...], count: int, seed: int) -> list[np.ndarray]:
    """Parts of `signals` of any length, very short ones included."""
    generator = random.Random(seed)
    cuts = []
    for _ in range(count):
        samples = generator.choice(signals)
        length = int(len(samples) ** generator.uniform(0.3, 1.0))
        begin = generator.randrange(len(samples) - length + 1)
        cuts.append(samples[begin : begin + length])
    return cuts


def reference(one: OracleModel, samples: np.ndarray, unit_roundoff: float = FLOAT32) -> LogMelReference:
    tensors = one.checkpoint.tensors("features.")
    window, filterbank = tensors["features.window"], tensors["features.mel_filterbank"]
    config = one.checkpoint.config.features
    return log_mel_reference(config, window, filterbank, torch.from_numpy(samples), unit_roundoff)


def assert_within(found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert ((found - expected).abs() <= bound).all()


def assert_nemo(one: OracleModel, samples: np.ndarray, found: torch.Tensor) -> None:
    """`found` is NeMo's mel of `samples`: two float32 paths, each within the bound of the exact one."""
    assert_within(found, one.mel(samples), 2 * reference(one, samples).rounding)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_reference_is_nemo_in_float64_and_in_float32(name: str):
    one = oracle_model(name)
    for samples in [*one.signals, *speech()]:
        mel, rounding = reference(one, samples, FLOAT64)
        assert_within(one.mel_float64(samples), mel, 2 * rounding)  # both are float64
        assert_within(one.mel(samples), mel, reference(one, samples).rounding)


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_random_requests_of_many_streams(name: str, at_once: int):
    one = oracle_model(name)
    signals = random_cuts(one.signals + speech(), 40, seed=at_once)
    for context in one.contexts:
        batches = list(random_batches([len(samples) for samples in signals], at_once, seed=context.right))
        for samples, found in zip(signals, stream_features(one, context, signals, batches), strict=True):
            assert_nemo(one, samples, found)
