"""The oracle's environment has NeMo; weights are compared one by one."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import torch

from recipes.an4.demo_model import DemoModelConfig, build_model, train_tokenizer
from recipes.an4.warm_start import WarmStart

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
    start.copy_to(made)
    wanted = model.state_dict()
    for name, values in made.state_dict().items():
        assert torch.equal(values, wanted[name]), name


def test_a_tdt_model_has_durations_of_equal_probability(saved):
    path, tokenizer, model = saved
    made = build_model(SMALL, tokenizer, DURATIONS)
    WarmStart(path).copy_to(made)
    output, source = made.joint.joint_net[-1], model.joint.joint_net[-1]
    assert torch.equal(output.weight[: -len(DURATIONS)], source.weight)
    assert torch.equal(output.bias[: -len(DURATIONS)], source.bias)
    assert not output.weight[-len(DURATIONS) :].any() and not output.bias[-len(DURATIONS) :].any()


def test_a_model_of_another_size_is_rejected_by_the_weight(saved):
    path, tokenizer, _ = saved
    made = build_model(DemoModelConfig(layers=1, width=24, heads=2, subsampling_channels=8, hidden=12), tokenizer)
    with pytest.raises(ValueError, match=r"model\.nemo: encoder\.\S+ is \(.*\), expected \("):
        WarmStart(path).copy_to(made)
