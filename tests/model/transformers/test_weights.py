"""Tensors of a Transformers model that do not fit: each is named as Transformers names it."""

import pytest
import torch

from penstock.model.transformers.config import read_transformers_config
from penstock.model.transformers.weights import load_state_dict
from tests.helpers.transformers_files import (
    PLAIN,
    WITH_PROMPTS,
    assert_rejected,
    change_weights,
    sources_of,
    transformers_state,
    write_transformers,
)

NAMES = sorted(transformers_state())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_transformers(tmp_path_factory.mktemp("weights") / "hf")


@pytest.fixture
def source(whole):
    """The checkpoint; its weights are as before after the test."""
    path = whole / "model.safetensors"
    before = path.read_bytes()
    yield whole
    path.write_bytes(before)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_needed_with_its_shape(source, name):
    change_weights(source, lambda state: state.pop(name))
    assert_rejected(source, rf"model\.safetensors: tensor {name} is missing, expected with shape \(")
    change_weights(source, lambda state: state.update({name: torch.zeros(3, 1, 2)}))
    assert_rejected(source, rf"model\.safetensors: tensor {name} is torch\.float32 \(3, 1, 2\), expected floating \(")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"prompt_projector.linear_1.weight": torch.zeros(2)},
            r"tensor prompt_projector\.linear_1\.weight is not expected",
        ),
        (
            {"joint.head.bias": torch.zeros(49, dtype=torch.int64)},
            r"joint\.head\.bias is torch\.int64; accepted: F32, F16",
        ),
        ({"joint.head.bias": torch.zeros(49, dtype=torch.float64)}, r"joint\.head\.bias is torch\.float64"),
        ({"joint.head.bias": torch.full((49,), float("nan"))}, r"the tensor for joint\.output\.bias is not finite"),
    ],
    ids=["left over", "integer", "double", "nan"],
)
def test_a_wrong_tensor(source, change, match):
    change_weights(source, lambda state: state.update(change))
    assert_rejected(source, match)


@pytest.mark.parametrize("kept_bytes", [0, 4, 1000, -1])
def test_a_truncated_file(source, kept_bytes):
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert_rejected(source, r"model\.safetensors: not a safetensors file, or truncated")


def test_a_pickle_is_not_read(source, tmp_path):
    torch.save(transformers_state(), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    try:
        assert_rejected(source, r"model\.safetensors is missing")
    finally:
        (source / "pytorch_model.bin").unlink()


@pytest.mark.parametrize("case", [PLAIN, WITH_PROMPTS])
def test_the_sources_are_all_tensors_of_the_file(tmp_path, case):
    directory = write_transformers(tmp_path / "hf", case)
    sources = sources_of(read_transformers_config(directory).model)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_state_dict(directory).items()}
    assert {source.name: source.shape for source in sources} == shapes
    assert len(sources) == len(shapes)
