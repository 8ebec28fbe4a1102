"""The oracle's environment has NeMo; weights are compared one by one."""

from dataclasses import replace

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import numpy as np
import torch

from recipes.an4.demo_model import DemoModelConfig, build_model, train_tokenizer
from recipes.an4.warm_start import WarmStart
from recipes.training.batches import normalized

pytestmark = pytest.mark.oracle
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12)
DURATIONS = (0, 1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    tokenizer = train_tokenizer(["one two three four", "five six seven"], folder / "tokenizer", 40)
    model = build_model(SMALL, tokenizer)
    model.save_to(str(folder / "model.nemo"))
    return folder / "model.nemo", tokenizer, model


def test_a_model_begins_with_the_tokenizer_and_weights_of_the_file(saved, tmp_path):
    path, tokenizer, model = saved
    start = WarmStart(path)
    written = start.write_tokenizer(tmp_path / "tokenizer")
    for name in ("tokenizer.model", "vocab.txt"):
        assert (written / name).read_bytes() == (tokenizer / name).read_bytes()
    made = build_model(SMALL, written)
    start.copy_to(made, [])
    wanted = model.state_dict()
    for name, values in made.state_dict().items():
        assert torch.equal(values, wanted[name]), name


def test_a_tdt_model_has_durations_of_equal_probability(saved, tmp_path):
    path, tokenizer, model = saved
    made, start = build_model(SMALL, tokenizer, DURATIONS), WarmStart(path)
    start.copy_to(made, [])
    made.save_to(str(tmp_path / "tdt.nemo"))
    assert start.durations == () and WarmStart(tmp_path / "tdt.nemo").durations == DURATIONS
    output, source = made.joint.joint_net[-1], model.joint.joint_net[-1]
    assert torch.equal(output.weight[: -len(DURATIONS)], source.weight)
    assert torch.equal(output.bias[: -len(DURATIONS)], source.bias)
    assert not output.weight[-len(DURATIONS) :].any() and not output.bias[-len(DURATIONS) :].any()


@torch.no_grad()
def test_an_offline_model_begins_with_nearly_the_values_of_a_streaming_one(saved):
    path, tokenizer, streaming = saved
    random = np.random.default_rng(3)
    mels = [-12 + 4 * normalized(random.standard_normal((1000, 80))) for _ in range(2)]
    made = build_model(replace(SMALL, is_offline=True), tokenizer, DURATIONS).eval()
    start = WarmStart(path)
    start.copy_to(made, mels)
    # What subsampling finds is later by 7 mel frames and higher by one mel bin; no padding is near.
    shifted = np.roll(mels[0], 1, axis=1)[7:]
    found, wanted = maps(made, normalized(mels[0]))[0], maps(streaming, shifted)[0]
    frames = min(found.shape[1], wanted.shape[1])
    torch.testing.assert_close(found[:, 2 : frames - 2, 2:-2], wanted[:, 2 : frames - 2, 3:-2], atol=2e-3, rtol=0)
    assert float(found.std()) > 0.05
    out, source = (
        each.encoder.pre_encode.out.weight.view(SMALL.width, -1, bins) for each, bins in ((made, 10), (streaming, 11))
    )
    assert torch.equal(out, source[:, :, 1:])
    # Centered convolutions see the frames that the causal ones saw last, and batch norms keep each channel's range.
    layer, causal = made.encoder.layers[0], streaming.encoder.layers[0]
    frames = torch.from_numpy(random.standard_normal((1, SMALL.width, 30)).astype(np.float32))
    old = frames.clone()
    old[:, :, :20] = 0  # beyond the taps that a centered convolution has
    centered = layer.conv.depthwise_conv(old)[..., 20:24]
    torch.testing.assert_close(centered, causal.conv.depthwise_conv(old)[..., 20:24])
    assert torch.equal(layer.self_attn.linear_q.weight, causal.self_attn.linear_q.weight)
    norms = []
    hook = start._model.encoder.layers[0].conv.batch_norm.register_forward_hook(lambda *call: norms.append(call[2][0]))
    for mel in mels:
        start._model.encoder(audio_signal=torch.from_numpy(mel.T[None]), length=torch.tensor([len(mel)]))
    hook.remove()
    torch.testing.assert_close(layer.conv.batch_norm.bias, torch.cat(norms).mean(0))
    torch.testing.assert_close(layer.conv.batch_norm.weight, torch.cat(norms).std(0))


def maps(model, mel: np.ndarray) -> torch.Tensor:
    """What the subsampling's convolutions find in frames [N, 80]: [1, channels, T, bins]."""
    found = []
    subsampling = model.encoder.pre_encode
    hook = subsampling.conv[-1].register_forward_hook(lambda module, inputs, output: found.append(output))
    subsampling(x=torch.from_numpy(mel)[None], lengths=torch.tensor([len(mel)]))
    hook.remove()
    return found[-1]  # one activation is used by all layers


def test_a_model_of_another_size_is_rejected_by_the_weight(saved):
    path, tokenizer, _ = saved
    made = build_model(DemoModelConfig(layers=1, width=24, heads=2, subsampling_channels=8, hidden=12), tokenizer)
    with pytest.raises(ValueError, match=r"model\.nemo: encoder\.\S+ is \(.*\), expected \("):
        WarmStart(path).copy_to(made, [])
