"""Greedy CTC search through the recognizer against NeMo's: same tokens, same first frames, same repetitions."""

from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel

from benchmarks.nemo_models import build_ctc_model
from benchmarks.nemo_specs import ModelSpec, float_signals
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.results.words import Token
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from recipes.an4.export_nemo import export_nemo
from tests.helpers.oracle.models import OracleModel, long_speech, oracle_model, random_batches, speech

pytestmark = pytest.mark.oracle
BUNDLED = Path(__file__).parents[2] / "models" / "an4-rnnt-hybrid"
TIE = 2e-4
"""Twice the largest difference between the encoders (tests/oracle/test_encoder.py)."""
MODELS = ("ctc", "rnnt_hybrid", "tdt_hybrid", "bundled")


@cache
def model_of(name: str, workspace: Path) -> OracleModel:
    """A CTC model, hybrids with random weights, or the bundled model as NeMo reads it."""
    if name not in ("ctc", "bundled"):
        return oracle_model(name)
    path = workspace / f"{name}.nemo"
    if name == "bundled":
        export_nemo(Checkpoint(BUNDLED), path)
        model, signals = ASRModel.restore_from(str(path), map_location="cpu").eval(), speech()
        model.preprocessor.featurizer.dither = 0.0
    else:
        named = float_signals()
        model, signals = build_ctc_model(ModelSpec("ctc", seed=7), workspace, named), tuple(named.values())
        model.save_to(str(path))
    return OracleModel(name, model, import_nemo(path, workspace / name), signals)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ctc")


def nemo_tokens(model: ASRModel, encoded: torch.Tensor) -> list[tuple[int, int, int]] | None:
    """Label, first frame and repetitions of NeMo's tokens for encoder output [T, D]; None where two labels tie."""
    is_alone = not hasattr(model, "ctc_decoder")
    head, decoding = (model.decoder, model.decoding) if is_alone else (model.ctc_decoder, model.ctc_decoding)
    with torch.no_grad():
        log_probs = head(encoder_output=encoded.T[None]).clone()  # without the type that NeMo checks
        (hypotheses,) = decoding.decoding(decoder_output=log_probs, decoder_lengths=torch.tensor([len(encoded)]))
    best, second = log_probs[0].topk(2, dim=1).values.unbind(dim=1)
    if (best - second).min() < TIE:
        return None
    decoding.compute_timestamps = True
    labels, lengths, repetitions = decoding.decode_hypothesis(hypotheses, fold_consecutive=True)[0].text
    return list(zip(labels, np.cumsum(lengths).tolist(), repetitions, strict=True))


def streamed_tokens(one: OracleModel, context: AttentionContext, signals: list[np.ndarray]) -> list[list[Token]]:
    recognizer = StreamingRecognizer(one.checkpoint.directory, context, max_streams=len(signals))
    tokens: list[list[Token]] = [[] for _ in signals]
    for batch in random_batches([len(samples) for samples in signals], len(signals), seed=context.right):
        requests = [
            AudioRequest(r.stream, signals[r.stream][r.begin : r.end], r.is_start, r.is_end,
                         {"decoder": "ctc"} if r.is_start else {})
            for r in batch
        ]  # fmt: skip
        for request, result in zip(batch, recognizer.process(requests), strict=True):
            tokens[request.stream] += result.tokens
    return tokens


@pytest.mark.parametrize("name", MODELS)
def test_random_requests_of_many_streams(name: str, workspace: Path):
    one = model_of(name, workspace)
    signals, compared = [*one.signals, long_speech(15.0)], 0
    for context in one.contexts:
        expected = [nemo_tokens(one.model, one.encode_mel(one.mel(samples), context)) for samples in signals]
        for tokens, others in zip(streamed_tokens(one, context, signals), expected, strict=True):
            assert others is None or [token[:3] for token in tokens] == others
        compared += sum(tokens is not None for tokens in expected)
    assert compared >= 0.6 * len(signals) * len(one.contexts)


def test_a_ctc_model_offers_ctc_search_alone(workspace: Path):
    checkpoint = model_of("ctc", workspace).checkpoint
    assert (checkpoint.config.head_name, checkpoint.source["class"]) == ("CTC", "EncDecCTCModelBPE")
    with StreamingRecognizer(checkpoint.directory).open_stream() as stream:
        assert stream.finish(speech()[0]).is_final
