"""`finalize` in running speech with the bundled models: tokens and words that are told are those without it."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from penstock import AudioRequest, StreamError, StreamingRecognizer
from penstock.frontend.audio_file import read_audio
from tests.helpers.golden import AN4
from tests.helpers.recognition import NO_SAMPLES
from tests.helpers.reference.edit_distance import edit_distance

MODELS = Path(__file__).parents[1] / "models"
DECODERS = {"an4-rnnt-hybrid": ("greedy", "ctc", "ctc_beam", "alsd", "aes"), "an4-tdt-hybrid": ("greedy",)}
MOST_EDITS = {"ctc": 4, "ctc_beam": 4, "alsd": 3, "aes": 3}
"""Edits in 33 words, where there is more than one: pauses within words, and beams whose best hypothesis changes."""
BLOCK = 1600


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """All recordings, one after another."""
    return np.concatenate([read_audio(path, 16_000) for path in sorted((AN4 / "flac").glob("*.flac"))])


@pytest.fixture(scope="module")
def recognizer(bundled_model) -> StreamingRecognizer:
    """Full with one stream: the copy that an end decodes takes no slot."""
    return StreamingRecognizer(bundled_model, max_streams=1)


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("model", DECODERS)
def test_at_any_interval_at_most_one_word_in_48_differs(model, precision, speech):
    recognizer = StreamingRecognizer(str(MODELS / model), max_streams=1, precision=precision)
    for decoder in DECODERS[model]:
        whole = words(recognizer, decoder, speech, 0)
        assert len(whole) >= 24
        for seconds in (1, 2, 3, 5):
            edits = edit_distance(words(recognizer, decoder, speech, seconds), whole)
            assert edits <= MOST_EDITS.get(decoder, -(-len(whole) // 48)), (decoder, seconds, edits, len(whole))


def words(recognizer: StreamingRecognizer, decoder: str, speech: np.ndarray, seconds: int) -> list[str]:
    """Words of the final texts, joined with blanks, where a segment ends every `seconds`; 0: none does."""
    blocks = np.split(speech[: len(speech) // BLOCK * BLOCK], len(speech) // BLOCK)
    with recognizer.open_stream(options={"decoder": decoder}) as stream:
        ends = (seconds and number % (10 * seconds) == 0 for number in range(1, len(blocks)))
        results = [(stream.finalize if end else stream.push)(b) for end, b in zip(ends, blocks, strict=False)]
        results.append(stream.finish(blocks[-1]))
    finals = [entry for result in results for entry in result.entries if entry.is_final]
    told = [word.text for result in results for entry in result.entries for word in entry.words]
    assert told == " ".join(final.text for final in finals).split()
    return told


def test_a_word_that_goes_on_is_told_once(recognizer, speech):
    """Its first part was told before the end, or with it."""
    assert words(recognizer, "greedy", speech, 1) == words(recognizer, "greedy", speech, 0)


def test_a_pause_of_100_ms_tells_the_last_word(recognizer):
    for path in sorted((AN4 / "flac").glob("*.flac")):
        audio = read_audio(path, 16_000)
        levels = np.sqrt(np.square(audio[: len(audio) // 160 * 160]).reshape(-1, 160).mean(1))
        audio = audio[: 160 * ((levels > 0.06 * np.percentile(levels, 95)).nonzero()[0][-1] + 11)]
        with recognizer.open_stream() as stream:
            final = stream.finalize(audio)
        with recognizer.open_stream() as stream:
            assert final.text == stream.finish(audio).text != ""


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
