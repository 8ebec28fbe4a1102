"""Precisions of the encoder: errors and words against float32, what a device accepts, and the probe of float16."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from penstock import runtime
from penstock.decoding.transducer.networks import open_network
from penstock.encoder import precision as precisions
from penstock.encoder.encoder import StreamingEncoder
from penstock.encoder.precision import open_encoder, prepare_precision, relative_error, resolve_precision
from penstock.errors import SettingError
from penstock.evaluation.errors import compare, total
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.recognizer import StreamingRecognizer
from tests.helpers.golden import AN4
from tests.helpers.random_models import random_checkpoint
from tests.helpers.streaming import encode_streams, extract, make_extractor

MAX_ERRORS = {"float16": 2e-3, "bfloat16": 1.5e-2}
"""Relative, of encoder frames to float32."""
MAX_WER_CHANGE, SPARE_WORDS = 0.02, 1
"""Relative; a word of these few may differ with the order of a CPU's sums."""
RECORDINGS = [json.loads(line) for line in (AN4 / "manifest.jsonl").read_text().splitlines()]


def speech_chunks(checkpoint: Checkpoint, context: AttentionContext) -> dict[int, list]:
    """The chunks of three bundled recordings, by slot."""
    chunks = {}
    for slot, entry in enumerate(RECORDINGS[:3]):
        extractor = make_extractor(checkpoint, context)
        found = extract(extractor, [0], [read_audio(AN4 / entry["audio_filepath"], 16000)], [True], [True])[0]
        valid = [found.mel.shape[1]] * (len(found.mel) - 1) + [found.last_valid_mel_frames]
        chunks[slot] = list(zip(found.mel, valid, strict=True))
    return chunks


def test_errors_on_speech(bundled_model):
    checkpoint, context = Checkpoint(bundled_model), AttentionContext(70, 6)
    chunks = speech_chunks(checkpoint, context)

    def frames(precision: str) -> torch.Tensor:
        encoder = open_encoder(checkpoint, context, len(chunks), precision=precision)
        return torch.cat([part.float() for part in encode_streams(encoder, chunks).values()])

    exact = frames("float32")
    for precision, largest in MAX_ERRORS.items():
        assert 1e-5 < relative_error(frames(precision), exact) <= largest


@pytest.mark.parametrize("name", ["an4-rnnt-hybrid", pytest.param("an4-tdt-hybrid", marks=pytest.mark.nightly)])
def test_words_on_speech(bundled_model, name):
    model = bundled_model.parent / name

    def transcribe(precision: str) -> list[str]:
        recognizer = StreamingRecognizer(model, (70, 6), precision=precision)
        texts = []
        for entry in RECORDINGS:
            with recognizer.open_stream() as stream:
                texts.append(stream.finish(read_audio(AN4 / entry["audio_filepath"], 16000)).text)
        return texts

    exact = transcribe("float32")
    assert any(exact)
    for precision in MAX_ERRORS:
        assert errors(transcribe(precision)) <= (1 + MAX_WER_CHANGE) * errors(exact) + SPARE_WORDS


def errors(texts: list[str]) -> int:
    """Word errors of all recordings."""
    return total(compare(entry["text"], text).words for entry, text in zip(RECORDINGS, texts, strict=True)).edits


def test_weights_are_folded_before_they_are_cast(golden_bundle):
    checkpoint = golden_bundle("rnnt_hybrid")
    exact, half = (
        StreamingEncoder(checkpoint, AttentionContext(6, 1), 1, dtype=dtype, engine="torch")
        for dtype in (torch.float32, torch.float16)
    )
    pairs = [
        (one._step._layers[0]._attention._position_bias, one._step._layers[0]._attention._positions)
        for one in (exact, half)
    ]
    for exactly, cast in zip(*pairs, strict=True):
        assert torch.equal(cast, exactly.half())
    assert half.state.kv_pages.dtype == torch.float16


@pytest.mark.parametrize("overflow", [float("nan"), float("inf"), 6e-3])
def test_float16_falls_back_where_its_probe_fails(golden_bundle, monkeypatch, caplog, overflow):
    monkeypatch.setattr(precisions, "probe", lambda *_: overflow)
    with caplog.at_level(logging.WARNING):
        encoder = open_encoder(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), 2, precision="float16")
    assert encoder.state.kv_pages.dtype == torch.float32
    assert "encoder: float16 has a relative error of" in caplog.text


def test_a_network_that_overflows_fails_the_probe(tmp_path):
    checkpoint = random_checkpoint(tmp_path, 0)

    class Loud:
        config = checkpoint.config

        def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
            """Feed-forward products beyond 65,504, which the norms of float32 take back."""
            found = checkpoint.tensors(*prefixes)
            return {n: t * 1e5 if "feed_forward1.down.weight" in n else t for n, t in found.items()}

    context = checkpoint.config.encoder.contexts[0]
    assert not precisions.probe(Loud(), context, "cpu", torch.float16) <= precisions.MAX_PROBE_ERROR
    assert precisions.probe(checkpoint, context, "cpu", torch.float16) <= precisions.MAX_PROBE_ERROR


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", "auto", "float32"),
        ("cuda", "auto", "float16"),
        ("cuda:1", "float32", "float32"),
        ("cpu", "float16", "float16"),
    ],
)
def test_what_a_precision_means(device, given, expected):
    assert resolve_precision(given, device) == expected


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("tf32", "'tf32' needs a CUDA device.*auto, float32, float16"),
        ("fp16", "'fp16' is not supported; supported: auto"),
    ],
)
def test_a_wrong_precision_is_rejected_by_name(given, match):
    with pytest.raises(SettingError, match=match):
        resolve_precision(given, "cpu")


@pytest.fixture
def products(monkeypatch) -> Iterator[tuple[Any, Any]]:
    """Torch's settings of convolutions and of matrix products on a machine that seems to have a GPU."""
    monkeypatch.setattr(runtime, "check_device", lambda *_: None)
    monkeypatch.setattr(runtime._Products, "allow_tf32", False)
    names = "allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"
    convolutions, matrices = torch.backends.cudnn, torch.backends.cuda.matmul
    kept = convolutions.allow_tf32, [getattr(matrices, name) for name in names]
    yield convolutions, matrices
    convolutions.allow_tf32 = kept[0]
    for name, value in zip(names, kept[1], strict=True):
        setattr(matrices, name, value)


def test_products_of_a_process(products):
    """Each part of a process prepares the device, and only a stage knows the precision."""
    for precision, is_allowed in (("auto", True), ("float16", True), ("float32", False)):
        prepare_precision(precision, "cuda")
        runtime.prepare_device("cuda")  # as a network does
        assert [backend.allow_tf32 for backend in products] == [is_allowed, is_allowed]
    assert not products[1].allow_fp16_reduced_precision_reduction
    assert not products[1].allow_bf16_reduced_precision_reduction


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_searches_never_decide_on_rounded_logits(golden_bundle, dtype):
    with pytest.raises(SettingError, match=r"a transducer in b?float16 needs fused kernels"):
        open_network(golden_bundle("rnnt_hybrid"), dtype=dtype)
