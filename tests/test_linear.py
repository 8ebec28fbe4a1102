"""Both layouts of a constant matrix give the same product, and the same recognizer."""

import pytest
import torch

from penstock import linear
from penstock.decoding.greedy.search import LabelLooping
from penstock.decoding.transducer.networks import open_network
from penstock.encoder.encoder import StreamingEncoder
from penstock.linear import Linear
from tests.helpers.decoding import assert_same_labels, decode_whole
from tests.helpers.golden import SIGNALS, golden_case
from tests.helpers.reference.greedy import Label
from tests.helpers.streaming import NAN, encode_streams, mel_chunks

ROWS = (0, 1, 2, 7, 33)


@pytest.fixture
def packs_all(monkeypatch):
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", 0)


def operands(rows: int) -> tuple[torch.Tensor, ...]:
    """x [rows, in], weight [out, in], bias [out], residual [rows, out]; sizes that fill no block."""
    generator = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(shape, generator=generator) for shape in ((rows, 521), (517, 521), (517,), (rows, 517)))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("minimum", [0, 1 << 30])
@torch.inference_mode()
def test_the_product(monkeypatch, rows, minimum):
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", minimum)
    x, weight, bias, residual = operands(rows)
    exact = x.double() @ weight.double().t()
    tolerance = {"rtol": 0, "atol": 2e-4}  # sums of 521 products of order 1
    assert (Linear(weight)._packed is not None) == (minimum == 0)
    torch.testing.assert_close(Linear(weight)(x).double(), exact, **tolerance)
    torch.testing.assert_close(Linear(weight, bias)(x).double(), exact + bias, **tolerance)
    torch.testing.assert_close(Linear(weight, bias).add_to(residual, x).double(), exact + bias + residual, **tolerance)
    torch.testing.assert_close(Linear(weight).add_to(residual, x).double(), exact + residual, **tolerance)
    both = Linear(weight, bias, has_single_rows=True)
    torch.testing.assert_close(both(x).double(), exact + bias, **tolerance)
    torch.testing.assert_close(both.add_to(residual, x).double(), exact + bias + residual, **tolerance)


@torch.inference_mode()
def test_inputs_that_are_not_contiguous(packs_all):
    x, weight, bias, _ = operands(33)
    layer, expected = Linear(weight, bias), (x.double() @ weight.double().t() + bias).float()
    torch.testing.assert_close(layer(x.t().contiguous().t()), expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(layer(x[:1].expand(5, -1)), expected[:1].expand(5, -1), rtol=0, atol=2e-4)
    torch.testing.assert_close(layer(x[3:9]), expected[3:9], rtol=0, atol=2e-4)
    torch.testing.assert_close(Linear(weight.t().contiguous().t(), bias)(x), expected, rtol=0, atol=2e-4)


class _OtherOperators:
    """Stands in for the operators of another version of torch."""

    _reorder_linear_weight = None


@pytest.mark.parametrize("change", ["no oneDNN", "no operator"])
def test_torch_without_the_packed_product_takes_the_plain_one(monkeypatch, packs_all, change):
    x, weight, bias, residual = operands(7)
    packed = Linear(weight, bias).add_to(residual, x)
    if change == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    else:
        monkeypatch.setattr(torch.ops, "mkldnn", _OtherOperators)
    plain = Linear(weight, bias)
    assert plain._packed is None
    torch.testing.assert_close(plain.add_to(residual, x), packed, rtol=0, atol=2e-4)


@pytest.mark.parametrize("minimum", [0, 1 << 30])
@torch.inference_mode()
def test_a_row_is_the_same_beside_any_others(monkeypatch, minimum):
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", minimum)
    x, weight, bias, _ = operands(33)
    layer = Linear(weight, bias)
    alone = torch.cat([layer(row[None]) for row in x])
    for rows in (1, 2, 3, 7, 16, 17, 33):
        torch.testing.assert_close(layer(x[:rows]), alone[:rows], rtol=0, atol=2e-4)
        assert torch.equal(layer(x[:rows]), layer(x[:rows].clone())), "equal shapes give equal bits"


@pytest.mark.parametrize("case", ["rnnt_hybrid", "tdt_hybrid"])
@torch.inference_mode()
def test_a_packed_model_recognizes_the_same(golden_bundle, packs_all, case):
    checkpoint, golden = golden_bundle(case), golden_case(case)
    network = open_network(checkpoint)
    assert network._output._packed is not None
    for context in golden.contexts:
        encoder = StreamingEncoder(checkpoint, context, slots=1)
        for signal in SIGNALS:
            chunks = mel_chunks(golden.mel(signal), encoder.config, encoder.context, NAN)
            encoded = encode_streams(encoder, {0: chunks})[0]
            torch.testing.assert_close(encoded, golden.encoded(context, signal), rtol=0, atol=1e-4)
            labels = golden.greedy(context, signal)
            durations = labels.durations or [0] * len(labels.tokens)
            expected = list(map(Label, labels.tokens, labels.timestamps, durations, labels.log_probabilities))
            assert_same_labels(decode_whole(network, LabelLooping(network), [encoded]), [expected])
