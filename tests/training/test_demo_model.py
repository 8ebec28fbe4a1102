"""How the demonstration models begin; the oracle's environment has NeMo."""

import numpy as np
import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import torch

from penstock.training.demo_model import (
    DemoModelConfig,
    build_model,
    condition_input,
    release_input,
    set_label_priors,
    standardise_subsampling,
    train_tokenizer,
)

pytestmark = pytest.mark.oracle
SMALL = DemoModelConfig(layers=1, width=16, heads=2, subsampling_channels=8, hidden=12)
TRANSCRIPTS = ["one two three four one one", "five six seven one"]


@pytest.fixture(scope="module", params=[(), (0, 1, 2)], ids=["rnnt", "tdt"])
def model(request, tmp_path_factory):
    tokenizer = train_tokenizer(TRANSCRIPTS, tmp_path_factory.mktemp("tokenizer"), 40)
    torch.manual_seed(1)
    return build_model(SMALL, tokenizer, request.param).eval()


def made_up_mels() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [(-11.5 + 3.5 * random.standard_normal((n, 80))).astype(np.float32) for n in (40, 120, 300, 100, 160)]


def test_the_encoders_layers_see_what_was_said(model):
    mels = made_up_mels()
    standardise_subsampling(model, mels)
    features = torch.from_numpy(np.stack([mel[:100] for mel in mels if len(mel) >= 100]))
    with torch.no_grad():
        found, _ = model.encoder.pre_encode(x=features, lengths=torch.full((4,), 100))
    found = model.encoder.xscale * found.flatten(0, 1)  # [B * T, D]
    assert float(found.mean(0).abs().max()) < 1e-3
    assert found.std(0).numpy() == pytest.approx(np.ones(SMALL.width), rel=1e-3)


def test_heads_begin_with_the_labels_shares(model):
    set_label_priors(model, TRANSCRIPTS, blank=0.7)
    labels = [label for text in TRANSCRIPTS for label in model.tokenizer.text_to_ids(text)]
    vocabulary = model.ctc_decoder.num_classes_with_blank - 1
    shares = np.bincount(labels, minlength=vocabulary) + 1.0
    wanted = np.append(0.3 * shares / shares.sum(), 0.7)
    for layer in (model.ctc_decoder.decoder_layers[0], model.joint.joint_net[-1]):
        found = layer.bias[: vocabulary + 1].softmax(0)
        assert found.detach().numpy() == pytest.approx(wanted, rel=1e-4)
        assert not layer.bias[vocabulary + 1 :].any(), "durations begin alike"


def test_a_model_whose_input_was_conditioned_is_saved_as_any_other(model, tmp_path):
    names = list(model.state_dict())
    features = torch.from_numpy(np.stack([mel[:100] for mel in made_up_mels() if len(mel) >= 100]))
    lengths = torch.full((len(features),), 100)
    with torch.no_grad():
        wanted, _ = model.encoder.pre_encode(x=features, lengths=lengths)
        condition_input(model, made_up_mels())
        between, _ = model.encoder.pre_encode(x=features, lengths=lengths)
        release_input(model)
        found, _ = model.encoder.pre_encode(x=features, lengths=lengths)
    torch.testing.assert_close(between, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert sorted(model.state_dict()) == sorted(names)
    model.save_to(str(tmp_path / "model.nemo"))
