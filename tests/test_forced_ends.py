"""`finalize` in running speech with the bundled models: the tokens that are told are those without it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from penstock import AudioRequest, StreamError, StreamingRecognizer
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from tests.helpers.golden import AN4
from tests.helpers.recognition import NO_SAMPLES

MODELS = Path(__file__).parents[1] / "models"
DECODERS = {"an4-rnnt-hybrid": ("greedy", "ctc", "alsd"), "an4-tdt-hybrid": ("greedy",)}
BLOCK = 1600


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """All recordings, one after another."""
    return np.concatenate([read_audio(path, 16_000) for path in sorted((AN4 / "flac").glob("*.flac"))])


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    return StreamingRecognizer(bundled_model, max_streams=2)


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("model", DECODERS)
def test_at_any_interval_at_most_one_word_in_48_differs(model, precision, speech):
    recognizer = StreamingRecognizer(str(MODELS / model), max_streams=1, precision=precision)
    tokenizer = Tokenizer(Checkpoint(MODELS / model).tokenizer_path)
    blocks = np.split(speech[: len(speech) // BLOCK * BLOCK], len(speech) // BLOCK)

    def words(decoder: str, every: int) -> list[str]:
        with recognizer.open_stream(options={"decoder": decoder}) as stream:
            ends = (every and number % every == 0 for number in range(1, len(blocks)))
            results = [(stream.finalize if end else stream.push)(b) for end, b in zip(ends, blocks, strict=False)]
            results.append(stream.finish(blocks[-1]))
        entries = [entry for result in results for entry in result.entries]
        return tokenizer.decode([token.id for entry in entries for token in entry.tokens]).split()

    for decoder in DECODERS[model]:
        whole = words(decoder, 0)
        assert len(whole) >= 24
        for seconds in (1, 2, 3, 5):
            edits = distance(words(decoder, 10 * seconds), whole)
            assert edits <= -(-len(whole) // 48), (decoder, seconds, edits, len(whole))


def distance(one: list[str], other: list[str]) -> int:
    row = list(range(len(other) + 1))
    for i, word in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, theirs in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != theirs))
    return row[-1]


def told(recognizer: StreamingRecognizer, speech: np.ndarray, cuts: list[int]) -> tuple[list[int], list[bool]]:
    """Token ids, and of each result whether it is final, where a segment ends after each of `cuts` samples."""
    with recognizer.open_stream() as stream:
        results = [stream.finalize(speech[a:b]) for a, b in itertools.pairwise([0, *cuts])]
        results.append(stream.finish(speech[max(cuts, default=0) :]))
    entries = [entry for result in results for entry in result.entries]
    assert [entry.segment for entry in entries if entry.is_final] == list(range(len(cuts) + 1))
    return [token.id for entry in entries for token in entry.tokens], [result.is_final for result in results]


@pytest.mark.parametrize("cuts", [[0], [1], [700, 1279], [0, 0, 0], [30_000, 30_000], [30_000, 30_001]], ids=str)
def test_ends_in_the_first_80_ms_and_one_after_another_change_no_token(recognizer, speech, cuts):
    speech = speech[:64_000]
    tokens, finals = told(recognizer, speech, cuts)
    assert tokens == told(recognizer, speech, [])[0] and all(finals)


def test_several_ends_of_a_stream_in_one_batch_and_one_after_its_end(recognizer, speech):
    speech = speech[:64_000]
    cuts = [10_000, 10_000, 33_000, 48_000]
    parts = np.split(speech, cuts)
    requests = [
        AudioRequest("s", part, is_start=i == 0, is_end=i == len(cuts), finalize=i < len(cuts))
        for i, part in enumerate(parts)
    ]
    results, _ = recognizer._step([*requests, AudioRequest("s", NO_SAMPLES, finalize=True)])
    assert isinstance(results[-1], StreamError) and results[-1].code.name == "STREAM_NOT_OPEN"
    tokens = [token.id for result in results[:-1] for entry in result.entries for token in entry.tokens]
    assert tokens == told(recognizer, speech, [])[0]
    assert [result.is_final for result in results[:-1]] == [True] * len(parts)
