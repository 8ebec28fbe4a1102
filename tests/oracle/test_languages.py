"""Language prompts against NeMo: labels, frames and text of every context and language, transducer and CTC."""

import pytest

pytest.importorskip("nemo", reason="needs the extra `oracle`")

import random

import torch

from benchmarks.nemo_models import decode
from benchmarks.nemo_specs import PROMPT_SPECS
from penstock.model.config import AttentionContext
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.models import OracleModel, oracle_model, speech
from tests.helpers.recognition import recognize_together

pytestmark = pytest.mark.oracle
CASES = [
    pytest.param(spec.name, AttentionContext(*context), id=f"{spec.name} {context}")
    for spec in PROMPT_SPECS
    for context in spec.all_contexts
]
RECORDINGS = 8


def languages(model: OracleModel) -> list[str]:
    """One for each prompt, three at most."""
    prompts = model.checkpoint.config.prompt.languages
    return list({prompt: name for name, prompt in prompts.items()}.values())[:3]


def recordings(model: OracleModel) -> list:
    return [*model.signals, *speech()][:RECORDINGS]


def recognized(model: OracleModel, context: AttentionContext, options: list[dict], signals: list) -> list:
    recognizer = StreamingRecognizer(model.checkpoint.directory, context, max_streams=len(signals))
    return recognize_together(recognizer, signals, random.Random(context.right), options=options)


@pytest.mark.parametrize(("name", "context"), CASES)
def test_labels_frames_and_text_are_nemos(name, context):
    model = oracle_model(name)
    prompts, chosen = model.checkpoint.config.prompt.languages, languages(model)
    signals = [samples for samples in recordings(model) for _ in chosen]
    options = [{"language": language} for _ in recordings(model) for language in chosen]
    found = iter(recognized(model, context, options, signals))
    model.model.decoding.set_strip_lang_tags(True, r"\s*<[a-z]{2,3}-[A-Za-z]{2}>")
    tags = 0
    for samples in recordings(model):
        for encoded in model.heads_input(samples, context, [prompts[language] for language in chosen]):
            expected, one = decode(model.model, encoded), next(found)
            assert [token.id for token in one.tokens] == expected.tokens
            assert [token.timestamp for token in one.tokens] == expected.timestamps
            assert not expected.durations or [token.duration for token in one.tokens] == expected.durations
            assert one.text == model.model.decoding.decode_tokens_to_str_with_strip_punctuation(expected.tokens)
            tags += len(set(expected.tokens) & set(model.checkpoint.config.tags))
    assert tags > 0, "the models write language tags"


@pytest.mark.parametrize("context", [pytest.param(AttentionContext(*c), id=str(c)) for c in PROMPT_SPECS[0].contexts])
def test_the_ctc_head_is_nemos(context):
    model = oracle_model(PROMPT_SPECS[0].name)
    prompts, chosen = model.checkpoint.config.prompt.languages, languages(model)
    signals = [samples for samples in recordings(model) for _ in chosen]
    options = [{"language": language, "decoder": "ctc"} for _ in recordings(model) for language in chosen]
    found = iter(recognized(model, context, options, signals))
    blank = model.checkpoint.config.vocabulary_size
    for samples in recordings(model):
        for encoded in model.heads_input(samples, context, [prompts[language] for language in chosen]):
            with torch.no_grad():
                labels = model.model.ctc_decoder(encoder_output=encoded.T[None])[0].argmax(-1)
            merged = labels.unique_consecutive()
            assert [token.id for token in next(found).tokens] == merged[merged != blank].tolist()
