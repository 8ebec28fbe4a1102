"""int8 on a CPU: products whose rows do not depend on each other, what is chosen on speech, and the words."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch

from penstock.encoder import int8
from penstock.encoder.encoder import StreamingEncoder
from penstock.encoder.int8 import Int8Linear, activation_bits
from penstock.encoder.precision import open_encoder, open_window_encoder, relative_error
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import ErrorCode, SettingError
from penstock.evaluation.errors import compare
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.recognizer import StreamingRecognizer
from penstock.transcription.offline import OfflineRecognizer
from tests.helpers.golden import AN4
from tests.helpers.int8 import CONTEXT, MAX_ENCODER_ERROR, bundled_mels
from tests.helpers.offline_models import random_offline_encoder
from tests.helpers.random_models import random_checkpoint
from tests.helpers.streaming import encode_streams

pytestmark = pytest.mark.skipif(not activation_bits(), reason="this torch has no int8 product for this CPU")
RECORDINGS = [json.loads(line) for line in (AN4 / "manifest.jsonl").read_text().splitlines()]
WIDTHS = {"7 bits": 7, "8 bits": 8}
MAX_PRODUCT_ERRORS = {7: 0.02, 8: 0.0125}
"""Relative, for normal numbers: a row's largest is 4 deviations, and a step a 63rd or a 127th of it."""


@pytest.fixture(params=WIDTHS.values(), ids=WIDTHS.keys())
def bits(request) -> int:
    if request.param > activation_bits():
        pytest.skip("8-bit sums are not exact on this CPU")
    return request.param


def operands(rows: int, inputs: int = 333, outputs: int = 257) -> tuple[torch.Tensor, ...]:
    """x [rows, in], weight [out, in], bias [out], residual [rows, out]; sizes that fill no block."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def test_the_product(bits):
    x, weight, bias, residual = operands(33)
    product, exact = Int8Linear(weight, bias, bits=bits), x @ weight.t()
    assert relative_error(product(x) - bias, exact) <= MAX_PRODUCT_ERRORS[bits]
    torch.testing.assert_close(product.add_to(residual, x), product(x) + residual, rtol=0, atol=1e-4)
    plain = Int8Linear(weight, bits=bits)
    torch.testing.assert_close(plain(x) + bias, product(x), rtol=0, atol=1e-4)
    torch.testing.assert_close(plain.add_to(residual, x), plain(x) + residual, rtol=0, atol=1e-4)
    assert torch.equal(product(x.view(11, 3, -1)).flatten(0, 1), product(x))
    assert torch.equal(product(x.t().contiguous().t()), product(x))
    assert product(x[:0]).shape == (0, 257)


@pytest.mark.parametrize("has_factors", [False, True])
def test_a_row_has_the_same_bits_whatever_the_others_are(bits, has_factors):
    x, weight, bias, _ = operands(32)
    product = Int8Linear(weight, bias, torch.rand(333) + 0.5 if has_factors else None, bits)
    alone = torch.cat([product(row[None]) for row in x])
    loud = x.clone()
    loud[::2] *= 100  # 40 dB
    for rows in (2, 3, 7, 32):
        assert torch.equal(product(loud[:rows])[1::2], alone[:rows][1::2])
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(product(loud[order])[order.argsort()][1::2], alone[1::2])


def test_no_sum_saturates(bits):
    """Two products of the largest inputs and weights exceed 16 bits with 8-bit inputs."""
    ones = torch.ones(5, 2048)
    for x, weight in ((ones, ones), (ones, -ones), (-ones, ones)):
        torch.testing.assert_close(Int8Linear(weight, bits=bits)(x), x @ weight.t(), rtol=1e-4, atol=0)


def test_rows_of_zeros_and_rows_that_are_not_finite(bits):
    x, weight, bias, _ = operands(6)
    weight[3] = 0.0
    product = Int8Linear(weight, bias, bits=bits)
    alone = product(x)
    x[0], x[1, 7], x[2, 5], x[3] = 0.0, float("nan"), float("inf"), 1e-42
    found = product(x)
    assert torch.equal(found[0], bias)
    assert not found[1].isfinite().any() and not found[2].isfinite().all()
    torch.testing.assert_close(found[3], bias, rtol=0, atol=1e-6)
    assert torch.equal(found[4:], alone[4:]) and torch.equal(found[4:, 3], bias[3].expand(2))


def test_smoothing_evens_out_channels(bits):
    x, weight, _, _ = operands(64)
    exact = x @ weight.t()
    usual = relative_error(Int8Linear(weight, bits=bits)(x), exact)
    x[:, :5] *= 50
    weight[:, :5] /= 50
    plain = relative_error(Int8Linear(weight, bits=bits)(x), exact)
    smoothed = relative_error(Int8Linear(weight, factors=int8._smoothing(weight, x), bits=bits)(x), exact)
    assert plain > 5 * usual and smoothed < 1.5 * usual


def test_smoothing_of_channels_without_inputs_or_weights():
    x, weight, _, _ = operands(9)
    x[:, 0], weight[:, 1], x[:, 2] = 0.0, 0.0, 1e-30
    factors = int8._smoothing(weight, x)
    assert (factors > 0).all() and factors.isfinite().all() and factors.reciprocal().isfinite().all()
    assert relative_error(Int8Linear(weight, factors=factors)(x), x @ weight.t()) < 0.02


def in_16_bits(x: torch.Tensor, largest: int, packed: torch.ScriptObject) -> torch.Tensor:
    """`int8._multiply` as a CPU without VNNI adds."""
    weight = torch.ops.quantized.linear_unpack(packed)[0]
    numbers, inputs = weight.int_repr().long(), (x * largest).round().long() + largest + 1
    products = inputs.unsqueeze(1) * numbers  # [rows, out, in]
    sums = products.unflatten(2, (-1, 2)).sum(3).clamp(-(1 << 15), (1 << 15) - 1).sum(2)
    return ((sums - (largest + 1) * numbers.sum(1)) / largest * weight.q_per_channel_scales()).float()


def test_inputs_have_7_bits_where_8_overflow(other_operators):
    other_operators.setattr(int8, "_multiply", in_16_bits)
    assert activation_bits() == 7
    ones = torch.ones(2, 64)
    assert not torch.allclose(Int8Linear(ones, bits=8)(ones), ones @ ones.t(), rtol=0.1)


@pytest.mark.parametrize("is_offline", [False, True])
def test_float32_is_used_where_torch_has_no_operators(other_operators, golden_bundle, tmp_path, caplog, is_offline):
    other_operators.setattr(torch.ops, "quantized", SimpleNamespace())
    if is_offline:
        encoder = open_window_encoder(random_checkpoint(tmp_path, 1, random_offline_encoder(1)), precision="int8")
    else:
        encoder = open_encoder(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), 2, precision="int8")
    assert encoder.int8.products == {"int8": 0, "float32": 0}
    assert caplog.text.count("has no int8 product for this CPU: float32 is used") == 1


def test_a_quiet_stream_has_the_same_frames_beside_others(bundled_model, converts_all):
    checkpoint = Checkpoint(bundled_model)
    chunks = bundled_mels(checkpoint)
    encoder = open_encoder(checkpoint, CONTEXT, 3, precision="int8")
    together, others = encode_streams(encoder, chunks), {0: chunks[1], 1: chunks[0], 2: chunks[2]}
    assert torch.equal(encode_streams(encoder, others)[2], together[2]), "as many rows, other neighbours"
    alone = encode_streams(encoder, {0: chunks[2]})[0]
    # Sums of attention differ in the last bits with the number of rows, and a bit may round to the next step:
    # of 127, or of 63 where inputs have 7 bits.
    assert relative_error(together[2], alone) < 0.01 * 2 ** (8 - activation_bits())
    exact = encode_streams(StreamingEncoder(checkpoint, CONTEXT, 3, engine="torch"), chunks)
    for slot in chunks:
        assert 1e-3 < relative_error(together[slot], exact[slot]) < MAX_ENCODER_ERROR[activation_bits()]
    assert not list(int8._products(encoder._step, "")), "a product is still stored in float32"
    assert encoder.int8.products == {"int8": 65, "float32": 0}


def test_windows_are_independent_of_their_batch(bundled_model, converts_all):
    checkpoint = Checkpoint(bundled_model.parent / "an4-offline")
    mel = int8.speech_mel(checkpoint)
    encoder, exact = open_window_encoder(checkpoint, precision="int8"), WindowEncoder(checkpoint).encode([mel])[0]
    found = encoder.encode([mel, mel[:150], 5 * mel])[0]
    assert relative_error(found, encoder.encode([mel])[0]) < 0.01 * 2 ** (8 - activation_bits())
    assert 1e-3 < relative_error(found, exact) < MAX_ENCODER_ERROR[activation_bits()]
    assert not list(int8._products(encoder._layers[0], "")) and encoder.int8.int8 > 60


@pytest.mark.parametrize(
    ("name", "width"),
    [("an4-rnnt-hybrid", 7), ("an4-offline", 8), pytest.param("an4-tdt-hybrid", 8, marks=pytest.mark.nightly)],
)
def test_words_are_those_of_float32(bundled_model, converts_all, monkeypatch, caplog, name, width):
    caplog.set_level(logging.INFO)
    bits = min(width, activation_bits())  # 8-bit sums are not exact on every CPU
    monkeypatch.setattr(int8, "activation_bits", lambda: bits)
    samples = [read_audio(AN4 / entry["audio_filepath"], 16000) for entry in RECORDINGS]

    def texts(precision: str) -> list[str]:
        model = bundled_model.parent / name
        if name == "an4-offline":
            return [result.text for result in OfflineRecognizer(model, precision=precision).transcribe(samples)]
        recognizer = StreamingRecognizer(model, CONTEXT[:2], precision=precision)
        return [recognizer.open_stream().finish(each).text for each in samples]

    exact = texts("float32")
    assert "predictor" not in caplog.text
    assert texts("int8") == exact
    assert "predictor: 1 products in int8" in caplog.text


class Changed:
    """A checkpoint with other tensors."""

    def __init__(self, checkpoint: Checkpoint, change):
        self._checkpoint, self._change, self.config = checkpoint, change, checkpoint.config
        self.int8, self.choose_precision = checkpoint.int8, checkpoint.choose_precision

    def tensors(self, *prefixes: str) -> dict[str, torch.Tensor]:
        return self._change(self._checkpoint.tensors(*prefixes))


READERS = {
    "feed_forward1.norm": ["feed_forward1.up"],
    "attention.norm": ["attention.query", "attention.key", "attention.value"],
    "convolution.norm": ["convolution.pointwise1"],
    "feed_forward2.norm": ["feed_forward2.up"],
}


def with_outliers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Three channels of each norm are 50 times as large, and what reads them takes it back."""
    for layer in {name.split(".")[2] for name in tensors if name.startswith("encoder.layers.")}:
        for norm, readers in READERS.items():
            for name in (f"{norm}.weight", f"{norm}.bias"):
                tensors[f"encoder.layers.{layer}.{name}"][7:10] *= 50
            for name in readers:
                tensors[f"encoder.layers.{layer}.{name}.weight"][:, 7:10] /= 50
    return tensors


def test_outlier_channels_cost_nothing(bundled_model, converts_all, monkeypatch):
    checkpoint = Checkpoint(bundled_model)
    chunks = bundled_mels(checkpoint)

    def error(source) -> float:
        exact, found = (
            torch.cat(list(encode_streams(each, chunks).values()))
            for each in (
                StreamingEncoder(source, CONTEXT, 3, engine="torch"),
                open_encoder(source, CONTEXT, 3, precision="int8"),
            )
        )
        return relative_error(found, exact)

    usual, changed = error(checkpoint), Changed(checkpoint, with_outliers)
    assert error(changed) <= 2 * usual
    monkeypatch.setattr(int8, "_SMOOTHED_GAIN", 0.0)
    monkeypatch.setattr(int8, "MAX_ERROR", 1.0)
    assert error(changed) > 3 * usual, "smoothing is what did it"


def test_products_with_large_errors_stay_float32(bundled_model, converts_all, monkeypatch, caplog):
    checkpoint = Checkpoint(bundled_model)
    chunks = bundled_mels(checkpoint)
    monkeypatch.setattr(int8, "MAX_ERROR", 0.0)
    encoder, exact = (open_encoder(checkpoint, CONTEXT, 3, precision=each) for each in ("int8", "float32"))
    assert caplog.text.count("no product is large and exact enough for int8: float32 is used") == 1
    assert encoder.int8.products == {"int8": 0, "float32": 65} and exact.int8 is None
    for found, expected in zip(*(encode_streams(each, chunks).values() for each in (encoder, exact)), strict=True):
        assert torch.equal(found, expected)


def test_weights_that_are_not_finite_stay_float32(bundled_model, converts_all, caplog):
    spoilt = ("encoder.layers.1.feed_forward1.up.weight", "encoder.layers.5.convolution.pointwise2.weight")

    def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name, value in zip(spoilt, (float("nan"), float("inf")), strict=True):
            if name in tensors:
                tensors[name][3, 4] = value
        return tensors

    with caplog.at_level(logging.INFO):
        encoder = open_encoder(Changed(Checkpoint(bundled_model), spoil), CONTEXT, 1, precision="int8")
    kept = encoder.int8.float32
    assert "layers.1.feed_forward1.up" in kept and "layers.5.convolution.pointwise2" in kept
    assert f"float32: {', '.join(kept)}" in caplog.text


def test_streams_without_speech(bundled_model, converts_all):
    recognizers = [StreamingRecognizer(bundled_model, CONTEXT[:2], precision=each) for each in ("int8", "float32")]
    for samples in (torch.zeros(32000), torch.ones(32000)):
        found, expected = (each.open_stream().finish(samples.numpy()).text for each in recognizers)
        assert compare(expected, found).words.edits == 0


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_rejects_it_by_name(bundled_model, device):
    accepted = "auto, float32, tf32, float16, bfloat16"
    for reject in (
        lambda: open_encoder(Checkpoint(bundled_model), CONTEXT, 1, device, "int8"),
        lambda: open_window_encoder(Checkpoint(bundled_model.parent / "an4-offline"), device, "int8"),
    ):
        with pytest.raises(SettingError, match=f"'int8' needs the CPU, not {device}; accepted: {accepted}") as raised:
            reject()
        assert raised.value.code is ErrorCode.SETTING_INVALID
