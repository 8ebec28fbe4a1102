"""Samples to tokens through the recogniser against NeMo's offline greedy decoding: same tokens, same frames."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np

from penstock.config import AttentionContext
from penstock.recognizer import StreamingRecognizer
from penstock.stages.decoder import StreamResult
from penstock.stages.features import AudioRequest
from penstock.transcript import Token
from tests.oracle.nemo_models import Greedy
from tests.oracle.subjects import SUBJECT_NAMES, Piece, Subject, long_speech, random_turns, subject

pytestmark = pytest.mark.oracle
LONG_S = {"real_speech": 45.0}
OTHER_LONG_S = 15.0


def stream_tokens(
    one: Subject, context: AttentionContext, signals: list[np.ndarray], turns: list[list[Piece]]
) -> list[list[Token]]:
    """Tokens of each signal."""
    recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=max(map(len, turns)) + 32)
    tokens: list[list[Token]] = [[] for _ in signals]
    for turn in turns:
        requests = [
            AudioRequest(piece.stream, signals[piece.stream][piece.begin : piece.end], piece.is_start, piece.is_end)
            for piece in turn
        ]
        for piece, result in zip(turn, recognizer.process(requests), strict=True):
            assert isinstance(result, StreamResult), result
            assert result.is_final == piece.is_end
            tokens[piece.stream] += result.tokens
    return tokens


def assert_same(found: list[Token], expected: Greedy) -> None:
    assert [token.id for token in found] == expected.tokens
    assert [token.timestamp for token in found] == expected.timestamps
    if expected.durations:
        assert [token.duration for token in found] == expected.durations


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_random_pieces_of_many_streams(name: str, at_once: int):
    one = subject(name)
    for context in one.contexts:
        expected = [one.decode(samples, context) for samples in one.signals]
        which = [i % len(one.signals) for i in range(at_once + 6)]
        signals = [one.signals[i] for i in which]
        turns = list(random_turns([len(samples) for samples in signals], at_once, seed=at_once + context.right))
        for i, found in zip(which, stream_tokens(one, context, signals, turns), strict=True):
            assert_same(found, expected[i])


@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_one_sample_a_piece(name: str):
    one = subject(name)
    context, samples = one.contexts[-1], min(one.signals, key=len)[:8000]
    turns = [[Piece(0, i, i + 1, i == 0, i + 1 == len(samples))] for i in range(len(samples))]
    assert_same(stream_tokens(one, context, [samples], turns)[0], one.decode(samples, context))


@pytest.mark.parametrize("name", SUBJECT_NAMES)
def test_long_speech(name: str):
    """Utterances without a break between them, many times the left context."""
    one, samples = subject(name), long_speech(LONG_S.get(name, OTHER_LONG_S))
    for context in one.contexts:
        turns = list(random_turns([len(samples)], 1, seed=context.right))
        (found,) = stream_tokens(one, context, [samples], turns)
        assert_same(found, one.decode(samples, context))
