"""Samples to tokens through the recognizer against NeMo's offline greedy decoding: same tokens, same frames."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np

from penstock.model.config import AttentionContext
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.results.words import Token
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.models import (
    MODEL_NAMES,
    OracleModel,
    Request,
    assert_greedy,
    long_speech,
    oracle_model,
    random_batches,
)

pytestmark = pytest.mark.oracle
LONG_S = {"real_speech": 45.0}
OTHER_LONG_S = 15.0


def stream_tokens(
    one: OracleModel, context: AttentionContext, signals: list[np.ndarray], batches: list[list[Request]]
) -> list[list[Token]]:
    """Tokens of each signal."""
    recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=max(map(len, batches)) + 32)
    tokens: list[list[Token]] = [[] for _ in signals]
    for batch in batches:
        requests = [
            AudioRequest(
                request.stream, signals[request.stream][request.begin : request.end], request.is_start, request.is_end
            )
            for request in batch
        ]
        for request, result in zip(batch, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            assert result.is_final == request.is_end
            tokens[request.stream] += result.tokens
    return tokens


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_random_requests_of_many_streams(name: str, at_once: int):
    one = oracle_model(name)
    for context in one.contexts:
        expected = [one.decode(samples, context) for samples in one.signals]
        which = [i % len(one.signals) for i in range(at_once + 6)]
        signals = [one.signals[i] for i in which]
        batches = list(random_batches([len(samples) for samples in signals], at_once, seed=at_once + context.right))
        for i, found in zip(which, stream_tokens(one, context, signals, batches), strict=True):
            assert_greedy(found, expected[i])


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_long_speech(name: str):
    """Utterances without a break between them, many times the left context."""
    one, samples = oracle_model(name), long_speech(LONG_S.get(name, OTHER_LONG_S))
    for context in one.contexts:
        batches = list(random_batches([len(samples)], 1, seed=context.right))
        (found,) = stream_tokens(one, context, [samples], batches)
        assert_greedy(found, one.decode(samples, context))
