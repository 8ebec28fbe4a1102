"""The ONNX files of `benchmarks.exports sherpa` compute what NeMo's model does, and run in sherpa-onnx."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")
pytest.importorskip("sherpa_onnx", reason="needs locks/sherpa.txt")

import numpy as np
import onnxruntime
import torch

from benchmarks.baselines import SherpaOnnx
from benchmarks.exports import export_sherpa, quantize
from benchmarks.nemo_models import build_model
from benchmarks.nemo_specs import EOU_SPEC, SPECS, ModelSpec, float_signals
from penstock.model.config import AttentionContext

pytestmark = pytest.mark.oracle
SIGNALS = float_signals()


@pytest.mark.parametrize("spec", [SPECS[0], EOU_SPEC], ids=lambda spec: spec.name)
def test_a_step_of_the_exported_encoder_is_nemos(tmp_path, spec: ModelSpec):
    model, context = build_model(spec, tmp_path, SIGNALS), spec.all_contexts[0]
    export_sherpa(model, context, tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"), providers=["CPUExecutionProvider"])
    sizes = session.get_modelmeta().custom_metadata_map
    mel = torch.randn(2, int(sizes["feat_dim"]), int(sizes["window_size"]), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((2,), mel.shape[2])
    caches = [cache.transpose(0, 1) if cache.ndim > 1 else cache for cache in model.encoder.get_initial_cache_state(2)]
    inputs = zip(session.get_inputs(), (mel, lengths, *caches), strict=True)
    encoded, frames, *_ = session.run(None, {put.name: value.contiguous().numpy() for put, value in inputs})
    with torch.inference_mode():
        model.encoder.set_default_att_context_size(context)
        model.encoder.setup_streaming_params()
        expected, expected_frames, *_ = model.encoder.cache_aware_stream_step(
            mel, lengths, *model.encoder.get_initial_cache_state(2)
        )
    assert frames.tolist() == expected_frames.tolist() == [context[1] + 1] * 2
    np.testing.assert_allclose(encoded, expected.numpy(), atol=1e-4)


def test_a_pure_transducer_runs_in_sherpa_in_float32_and_int8(tmp_path):
    model, context = build_model(EOU_SPEC, tmp_path, SIGNALS), AttentionContext(*EOU_SPEC.contexts)
    export_sherpa(model, list(context), tmp_path / "float32" / "70_1")
    quantize(tmp_path / "float32" / "70_1", tmp_path / "int8" / "70_1")
    pieces = (tmp_path / "int8" / "70_1" / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert pieces[-1] == f"<blk> {model.decoder.blank_idx}"
    for precision in ("float32", "int8"):
        recognizer = SherpaOnnx(tmp_path / precision, context, EOU_SPEC.mel_bins)
        assert recognizer.run(list(SIGNALS.values()), [[0], [1], [2]]).keys() == {0, 1, 2}
