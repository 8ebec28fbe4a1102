"""Recordings through one model in three systems: the labels of Penstock, NeMo and Transformers, and their frames.

The same weights are written in both formats and imported from both: the bundled model's, and random ones.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel
from transformers import AutoProcessor, NemotronAsrStreamingForRNNT

from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.model.transformers.importer import import_transformers
from penstock.recognizer import StreamingRecognizer
from recipes.an4.export_nemo import export_nemo
from tests.helpers.oracle.models import OracleModel, speech
from tests.helpers.oracle.transformers_models import TransformersModel, between_leads, export_transformers
from tests.helpers.random_models import randomized

pytestmark = pytest.mark.oracle
BUNDLE = Path(__file__).parents[2] / "models" / "an4-rnnt-hybrid"
CONTEXTS = tuple(Checkpoint(BUNDLE).config.encoder.contexts)
MAX_TIE = 1e-3
"""A system may choose the other label where the two best logits are this close: rounding decides there."""
_workspace = TemporaryDirectory(prefix="penstock-oracle-")


class Labels(NamedTuple):
    """Labels and their encoder frames."""

    ids: list[int]
    frames: list[int]


class Systems(NamedTuple):
    """One model in its formats."""

    from_nemo: Checkpoint
    from_transformers: Checkpoint
    nemo: OracleModel
    transformers: TransformersModel


@cache
def systems(name: str) -> Systems:
    """name: "bundled" or "random"."""
    folder = Path(_workspace.name) / name
    checkpoint = Checkpoint(BUNDLE) if name == "bundled" else random_weights(folder)
    export_nemo(checkpoint, folder / "model.nemo")
    export_transformers(checkpoint, folder / "transformers")
    from_nemo = import_nemo(folder / "model.nemo", folder / "from_nemo")
    from_transformers = import_transformers(folder / "transformers", folder / "from_transformers")
    nemo = ASRModel.restore_from(str(folder / "model.nemo"), map_location="cpu").eval()
    transformers = open_transformers(folder / "transformers", from_transformers)
    return Systems(from_nemo, from_transformers, OracleModel(name, nemo, from_nemo, recordings()), transformers)


def open_transformers(directory: Path, checkpoint: Checkpoint) -> TransformersModel:
    model = NemotronAsrStreamingForRNNT.from_pretrained(directory).eval()
    return TransformersModel(model, AutoProcessor.from_pretrained(directory), directory, checkpoint, recordings())


@torch.no_grad()
def random_weights(folder: Path) -> Checkpoint:
    """The bundled model's architecture with two layers: blank in about 0.7 of a recording's frames after any label."""
    source = randomized(Checkpoint(BUNDLE), folder / "uncalibrated", seed=4, layers=2)
    export_transformers(source, folder / "uncalibrated_transformers")
    one, blank = open_transformers(folder / "uncalibrated_transformers", source), source.config.vocabulary_size
    encoded = one.model.get_audio_features(**one.features(recordings()[0]), num_lookahead_tokens=CONTEXTS[0].right)
    labels = torch.arange(blank)[:, None]
    logits = one.model.joint(
        decoder_hidden_states=one.model.decoder(labels), encoder_hidden_states=encoded.pooler_output
    )
    tensors = source.tensors()
    tensors["joint.output.bias"][blank] += between_leads(logits[..., :blank].amax(dim=2) - logits[..., blank], 0.7)
    tokenizer = source.tokenizer_path.read_bytes()
    return write_checkpoint(folder / "calibrated", source.config, tensors, tokenizer, {})


@cache
def recordings() -> tuple[np.ndarray, ...]:
    """The bundled ones, two of them with a second of silence between, and all in a row: many times the left context."""
    first, second, *_ = parts = speech()
    return (*parts, np.concatenate([first, np.zeros(16000, np.float32), second]), np.concatenate(parts))


def recognize(recognizer: StreamingRecognizer, samples: np.ndarray) -> Labels:
    with recognizer.open_stream() as stream:
        for start in range(0, len(samples), 1700):
            stream.push(samples[start : start + 1700])
        stream.finish()
    return Labels([token.id for token in stream.tokens], [token.timestamp for token in stream.tokens])


@torch.no_grad()
def tie(one: TransformersModel, samples: np.ndarray, context: AttentionContext, found: Labels, other: Labels) -> float:
    """The distance of the two best logits where `found` and `other` first differ."""
    pairs = list(zip(zip(*found, strict=True), zip(*other, strict=True), strict=False))
    at = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
    frame = min(labels.frames[at] for labels in (found, other) if at < len(labels.frames))
    encoded = one.model.get_audio_features(**one.features(samples), num_lookahead_tokens=context.right).pooler_output
    blank = one.model.config.blank_token_id
    prediction = one.model.decoder(torch.tensor([[blank, *found.ids[:at]]]))[0, -1]
    best = one.model.joint(decoder_hidden_states=prediction, encoder_hidden_states=encoded[0, frame]).topk(2).values
    return float(best[0] - best[1])


@pytest.mark.parametrize("name", ["bundled", "random"])
def test_both_formats_give_the_same_tensors(name):
    tensors = [one.tensors("encoder.", "predictor.", "joint.") for one in systems(name)[:2]]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("name", ["bundled", "random"])
def test_labels_and_frames(name, context):
    one = systems(name)
    recognizer = StreamingRecognizer(one.from_transformers.directory, context, max_streams=2)
    heard = 0
    for number, samples in enumerate(recordings()):
        found = recognize(recognizer, samples)
        greedy = one.nemo.decode(samples, context)
        for system, other in (
            ("NeMo", Labels(greedy.tokens, greedy.timestamps)),
            ("Transformers", Labels(*one.transformers.decode(samples, context))),
        ):
            if found != other:
                distance = tie(one.transformers, samples, context, found, other)
                print(f"{name}, {context}, recording {number}: {system} differs, two best logits {distance:.2e} apart")
                assert distance <= MAX_TIE, (system, found, other)
        heard += len(found.ids)
    assert heard > 50
