"""A language for each stream: tokens and text are NeMo's, whatever the other streams of the batch speak."""

import random

import numpy as np
import pytest

from penstock import AudioRequest, StreamError, StreamingRecognizer
from penstock.errors import ErrorCode
from penstock.model.languages import LANGUAGE_TAG, without_tags
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from tests.helpers.golden import SIGNALS, golden_prompted, golden_samples, golden_tags
from tests.helpers.recognition import recognize_alone, recognize_together

LANGUAGES = ("en-US", "de-DE", "auto")
CONTEXTS = sorted({golden.context for golden in golden_prompted()})
CONTEXT = (56, 3)


@pytest.fixture(scope="module")
def bundle(golden_bundle):
    return golden_bundle("prompt_hybrid")


@pytest.fixture(scope="module")
def recognizer(bundle) -> StreamingRecognizer:
    return StreamingRecognizer(bundle.directory, CONTEXT, max_streams=24)


@pytest.mark.parametrize("context", CONTEXTS)
def test_golden_tokens_and_text_of_three_languages_in_one_batch(bundle, context):
    golden = [one for one in golden_prompted() if one.context == context]
    recognizer = StreamingRecognizer(bundle.directory, context, max_streams=len(golden))
    signals = [golden_samples(one.signal).numpy() for one in golden]
    options = [{} if one.language == "auto" else {"language": one.language} for one in golden]
    found = recognize_together(recognizer, signals, random.Random(0), options=options)
    for expected, one in zip(golden, found, strict=True):
        assert [token.id for token in one.tokens] == expected.tokens
        assert [token.timestamp for token in one.tokens] == expected.timestamps
        assert one.text == expected.text
        assert [word.text for word in one.words] == expected.text.split()
        tags = [token for token in expected.tokens if token in golden_tags()]
        piece = Tokenizer(bundle.tokenizer_path).piece
        assert one.results[-1].language == (piece(tags[-1])[1:-1] if tags else "")
    assert len({tuple(one.tokens) for one in golden}) > len(SIGNALS), "the prompts change what is recognized"
    assert any(one.results[-1].language for one in found)


def streams(count: int) -> tuple[list[np.ndarray], list[dict]]:
    """Signals that begin at different places, and the languages of their streams."""
    signals = [golden_samples(SIGNALS[i % 3]).numpy()[800 * (i // 9) :] for i in range(count)]
    return signals, [{"language": LANGUAGES[i // 3 % 3]} for i in range(count)]


def test_a_batch_of_9_rows_equals_9_single_runs(recognizer):
    """Three signals and languages beside each other, and three decoders beside each of them."""
    signals, options = streams(9)
    options = [one | {"decoder": ("greedy", "alsd", "ctc_beam")[(i + i // 3) % 3]} for i, one in enumerate(options)]
    together = recognize_together(recognizer, signals, random.Random(1), most=32_000, options=options)
    for samples, chosen, one in zip(signals, options, together, strict=True):
        assert one.outcome == recognize_alone(recognizer, samples, options=chosen).outcome
    assert len({tuple(token.id for token in one.tokens) for one in together}) >= 8, "nearly all of them differ"


def test_the_language_holds_across_finalize(recognizer):
    samples = golden_samples("medium").numpy()
    halves = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    with recognizer.open_stream(options={"language": "de-DE"}) as stream:
        first, second = stream.finalize(halves[0]), stream.finish(halves[1])
    assert (first.segment, second.segment) == (0, 1)
    alone = recognize_alone(recognizer, samples, options={"language": "de-DE"})
    assert [token[:1] for token in (*first.tokens, *second.tokens)] == [token[:1] for token in alone.tokens]
    assert alone.text != recognize_alone(recognizer, samples).text


def test_a_slot_forgets_the_language_of_its_last_stream(bundle):
    recognizer = StreamingRecognizer(bundle.directory, CONTEXT, max_streams=1)
    samples = golden_samples("medium").numpy()
    before = recognize_alone(recognizer, samples).text
    for _ in range(2 * recognizer.table.slots):
        other = recognize_alone(recognizer, samples, options={"language": "no"}).text
        assert recognize_alone(recognizer, samples).text == before != other


def test_tags_can_be_kept(recognizer):
    samples, options = golden_samples("long").numpy(), {"language": "en-US", "decoder": "alsd", "n_best": 2}
    plain = recognize_alone(recognizer, samples, options=options)
    kept = recognize_alone(recognizer, samples, options=options | {"language_tags": "keep"})
    assert LANGUAGE_TAG.search(kept.text) and not LANGUAGE_TAG.search(plain.text)
    assert without_tags(kept.text) == plain.text
    assert [token[:2] for token in kept.tokens] == [token[:2] for token in plain.tokens]
    assert kept.results[-1].language == plain.results[-1].language != ""
    assert any(LANGUAGE_TAG.search(word.text) for word in kept.words)
    for with_tags, without in zip(kept.results[-1].alternatives, plain.results[-1].alternatives, strict=True):
        assert without_tags(with_tags.text) == without.text
        assert [word.text for word in without.words] == without.text.split()


def test_the_default_can_be_another(bundle):
    samples, decoding = golden_samples("medium").numpy(), DecodingConfig(language="de-DE")
    german = StreamingRecognizer(bundle.directory, CONTEXT, decoding=decoding)
    with german.open_stream(options={"language": "auto"}) as stream:
        auto = stream.finish(samples).text
    automatic = StreamingRecognizer(bundle.directory, CONTEXT)
    assert auto == recognize_alone(automatic, samples).text
    expected = recognize_alone(automatic, samples, options={"language": "de-DE"}).text
    assert recognize_alone(german, samples).text == expected != auto


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("prompt_hybrid", {"language": "xx"}, "language is 'xx'; accepted: en-US, en, de-DE, no, auto"),
        ("prompt_hybrid", {"language": "EN-us"}, "language is 'EN-us'; accepted: "),
        ("prompt_hybrid", {"language": 3}, "language is 3; accepted: "),
        ("prompt_hybrid", {"language_tags": "drop"}, "language_tags is 'drop'; accepted: remove, keep"),
        ("rnnt_hybrid", {"language": "en"}, "language is 'en', but the model has no language prompts: leave it out"),
        ("rnnt_hybrid", {"language_tags": "keep"}, "language_tags is given, but the model writes no language tags"),
    ],
)
def test_wrong_options_are_rejected_by_name_and_disturb_no_other(golden_bundle, name, options, match):
    recognizer = StreamingRecognizer(golden_bundle(name).directory, max_streams=2)
    samples = golden_samples("short").numpy()
    bad, good = AudioRequest(1, samples, True, options=options), AudioRequest(2, samples, True, True)
    rejected, accepted = recognizer.process([bad, good])
    assert isinstance(rejected, StreamError)
    assert rejected.code == ErrorCode.OPTION_INVALID
    assert match in rejected.message
    assert accepted.text == recognize_alone(recognizer, samples).text
