"""Imported bundles against the models of Transformers they come from: log-mel, encoder output, greedy labels."""

import random

import pytest

pytest.importorskip("transformers", reason="needs the extra `oracle-hf`")

import numpy as np
import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.transformers_models import SPECS, WITH_PROMPTS, TransformersModel, transformers_model

pytestmark = pytest.mark.oracle
NAMES = [spec.name for spec in (*SPECS, WITH_PROMPTS)]
TOLERANCE = 1e-4  # derived in tests/encoder/test_encoder.py


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_are_imported(name: str):
    one = transformers_model(name)
    ours = one.checkpoint.tensors("encoder.", "predictor.", "joint.", "prompt.")
    in_table = one.model.config.prompt_intermediate_size if "prompt.table" in ours else 0  # a bias for all its rows
    assert sum(tensor.numel() for tensor in ours.values()) + in_table == one.model.num_parameters()
    assert [context.right for context in one.contexts] == one.processor.supported_num_lookahead_tokens


@pytest.mark.parametrize("name", NAMES)
def test_encoder_output(name: str):
    one = transformers_model(name)
    for context in one.contexts:
        encoder = StreamingEncoder(one.checkpoint, context, slots=1)
        factor = one.checkpoint.config.encoder.subsampling_factor
        whole, virtual = factor * context.chunk_encoder_frames, factor - 1
        for samples in one.signals:
            mel = one.mel(samples)
            count = -(-(virtual + len(mel)) // whole)
            rows = torch.randn(count * whole, mel.shape[1], generator=torch.Generator().manual_seed(0))
            rows[virtual : virtual + len(mel)] = mel
            valid = [whole] * (count - 1) + [virtual + len(mel) - (count - 1) * whole]
            slot, found = torch.tensor([0]), []
            encoder.open(slot)
            for chunk, valid_frames in zip(rows.view(count, whole, -1), valid, strict=True):
                encoded = encoder.step(slot, chunk[None], torch.tensor([valid_frames]))
                found.append(encoded.frames[0, : int(encoded.valid_encoder_frames[0])])
            torch.testing.assert_close(torch.cat(found), one.encode_mel(mel, context), rtol=0, atol=TOLERANCE)


def stream_tokens(
    one: TransformersModel, recognizer: StreamingRecognizer, samples: np.ndarray, seed: int, options: dict | None = None
):
    """Labels and their frames, from requests of random lengths."""
    draw, at, tokens = random.Random(seed), 0, []
    while at < len(samples):
        size = draw.choice([1, 160, 1600, 8000])
        chosen = options if options and at == 0 else {}
        request = AudioRequest(0, samples[at : at + size], at == 0, at + size >= len(samples), chosen)
        (result,) = recognizer.process([request])
        tokens += result.tokens
        at += size
    return [token.id for token in tokens], [token.timestamp for token in tokens]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_labels_and_their_frames(name: str):
    one, labels = transformers_model(name), set()
    for context in one.contexts:
        recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=4)
        for seed, samples in enumerate(one.signals):
            expected = one.decode(samples, context)
            assert stream_tokens(one, recognizer, samples, seed) == expected
            labels |= set(expected[0])
    assert len(labels) > 3  # not a model that always says the same


def test_greedy_labels_of_each_language():
    one, found = transformers_model(WITH_PROMPTS.name), set()
    assert one.checkpoint.config.prompt.languages == WITH_PROMPTS.languages
    for context in one.contexts:
        recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=4)
        for language in ("en-US", "de-DE", "no"):
            for seed, samples in enumerate(one.signals):
                expected = one.decode(samples, context, WITH_PROMPTS.languages[language])
                options = {"language": language}
                assert stream_tokens(one, recognizer, samples, seed, options) == expected
                found.add((context, seed, tuple(expected[0])))
    assert len(found) > 2 * 3 * len(one.contexts), "languages give other labels"
