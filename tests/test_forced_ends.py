"""`finalize` right after speech, in noise and in running speech, with the bundled models."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from penstock import AudioRequest, StreamError, StreamingRecognizer
from penstock.frontend.audio_file import read_audio
from tests.helpers.golden import AN4
from tests.helpers.recognition import NO_SAMPLES
from tests.helpers.reference.edit_distance import edit_distance
from tests.helpers.streaming import after_speech

MODELS = Path(__file__).parents[1] / "models"
DECODERS = {"an4-rnnt-hybrid": ("greedy", "ctc", "ctc_beam", "alsd", "aes"), "an4-tdt-hybrid": ("greedy",)}
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
def test_an_end_costs_at_most_two_edits_and_all_of_them_few(model, precision, speech):
    recognizer = StreamingRecognizer(str(MODELS / model), max_streams=1, precision=precision)
    for decoder in DECODERS[model]:
        whole = words(recognizer, decoder, speech, 0)
        assert len(whole) >= 24
        for seconds in (1, 2, 3, 5):
            edits, ends = (
                edit_distance(words(recognizer, decoder, speech, seconds), whole),
                len(speech) // 16_000 // seconds,
            )
            assert edits <= min(2 * ends, len(whole) // 4), (decoder, seconds, edits, len(whole))


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


@pytest.mark.parametrize("decoder", DECODERS["an4-rnnt-hybrid"])
def test_an_end_right_after_speech_tells_every_word_that_finish_tells(recognizer, decoder):
    options = {"decoder": decoder}
    samples = read_audio(min((AN4 / "flac").glob("*.flac")), 16_000)
    for audio in itertools.islice(after_speech(samples), 0, None, 1 if decoder == "greedy" else 3):
        with recognizer.open_stream(options=options) as stream:
            final = stream.finalize(audio)
        with recognizer.open_stream(options=options) as stream:
            assert final.text == stream.finish(audio).text


@pytest.mark.parametrize("decoder", DECODERS["an4-rnnt-hybrid"])
def test_what_was_told_as_stable_begins_the_final_text(recognizer, decoder, speech):
    chance, stable, segment = random.Random(decoder), "", 0
    with recognizer.open_stream(options={"decoder": decoder}) as stream:
        for start in range(0, 128_000, 2000):
            result = (stream.finalize if chance.random() < 0.1 else stream.push)(speech[start : start + 2000])
            for entry in result.entries:
                assert entry.text.startswith(stable) and entry.segment == segment
                stable = "" if entry.is_final else entry.text[: entry.stable_chars]
                segment += entry.is_final
    assert segment > 3


def told(recognizer: StreamingRecognizer, speech: np.ndarray, cuts: list[int]) -> tuple[list[int], list[bool]]:
    """Token ids, and of each result whether it is final, where a segment ends after each of `cuts` samples."""
    with recognizer.open_stream() as stream:
        results = [stream.finalize(speech[a:b]) for a, b in itertools.pairwise([0, *cuts])]
        results.append(stream.finish(speech[max(cuts, default=0) :]))
    entries = [entry for result in results for entry in result.entries]
    assert [entry.segment for entry in entries if entry.is_final] == list(range(len(cuts) + 1))
    return [token.id for entry in entries for token in entry.tokens], [result.is_final for result in results]


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
