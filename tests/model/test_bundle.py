"""Bundles: written whole, read in parts, every fault named."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint, tensor_shapes, write_checkpoint
from penstock.model.bundle_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from penstock.model.config import (
    FACTORIZED,
    AttentionContext,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    IlmPair,
    ModelConfig,
    TransducerConfig,
)
from tests.helpers.transformers_files import change_json, change_weights

CONFIG = ModelConfig(
    features=FeatureConfig(16000, 400, 160, 512, 80, 0.97, 2**-24),
    encoder=EncoderConfig(80, 2, 8, 2, 16, 5, False, False, True, 8, 4, ((6, 1), (4, 0))),
    transducer=TransducerConfig(10, 6, 2, 7, "relu", (0, 2)),
    ctc=CtcConfig(10),
)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in tensor_shapes(CONFIG).items()}


@pytest.fixture
def bundle(tmp_path, tensors) -> Checkpoint:
    return write_checkpoint(tmp_path / "bundle", CONFIG, tensors, b"pieces", {"file": "a.nemo"})


def test_round_trip(bundle, tensors):
    opened = Checkpoint(bundle.directory)
    assert opened.config == CONFIG
    assert opened.config.encoder.contexts == (AttentionContext(6, 1), AttentionContext(4, 0))
    assert opened.source == {"file": "a.nemo"}
    assert opened.tokenizer_path.read_bytes() == b"pieces"
    read = opened.tensors()
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_tensors_keep_no_file_in_memory(bundle):
    read = bundle.tensors("encoder.")
    assert str(bundle.directory / WEIGHTS_FILE) not in Path("/proc/self/maps").read_text()
    assert read


@pytest.mark.parametrize("name", [WEIGHTS_FILE, TOKENIZER_FILE, CONFIG_FILE])
def test_a_missing_file_is_named(bundle, name):
    (bundle.directory / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        Checkpoint(bundle.directory)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("joint.output.bias"), "tensor joint.output.bias is missing"),
        (lambda t: t.update({"joint.output.bias": torch.zeros(3)}), r"joint.output.bias is torch.float32 \(3,\)"),
        (lambda t: t.update({"joint.output.bias": torch.zeros(13, dtype=torch.int8)}), "torch.int8"),
    ],
)
def test_a_wrong_tensor_in_the_file_is_named(bundle, change, match):
    change_weights(bundle.directory, change, WEIGHTS_FILE)
    bundle.tensors("encoder.")  # the other parts can still be read
    with pytest.raises(CheckpointError, match=match):
        bundle.tensors("joint.")


def test_broken_weights(bundle):
    (bundle.directory / WEIGHTS_FILE).write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match="cannot be read"):
        bundle.tensors()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(format="other"), '"format" must be'),
        (lambda d: d.update(version=99), "version 99, supported: 1, 2, 3"),
        (lambda d: d.pop("model"), "does not fit the schema"),
        (lambda d: d["model"].update(features=3), "does not fit the schema"),
        (lambda d: d["model"]["encoder"].update(contexts=[[6]]), "does not fit the schema"),
        (lambda d: d["model"]["encoder"].update(unknown=1), "does not fit the schema"),
        (lambda d: d["model"]["encoder"].update(n_heads=0), r"config\.json: n_heads: 0 is not supported"),
        (lambda d: d["model"].update(prompt={"prompts": 1, "hidden": 1, "languages": "en", "default": "en"}), "schema"),
        (lambda d: d.update(source=[1]), r'"source" is \[1\]; accepted: an object'),
        (lambda d: d["model"]["encoder"].update(n_layers="2"), "n_layers: '2' is not supported"),
        (lambda d: d["model"]["encoder"].update(n_layers=10**9), "n_layers: 1000000000 is not supported"),
        (lambda d: d["model"]["encoder"].update(use_bias=1), "use_bias: 1 is not supported; supported: true or false"),
        (lambda d: d["model"]["features"].update(log_guard=float("inf")), "log_guard: inf is not supported"),
        (lambda d: d["model"]["transducer"].update(tdt_durations=[0.5]), r"tdt_durations: \[0.5\] is not supported"),
    ],
)
def test_a_wrong_config_is_rejected(bundle, change, match):
    change_json(bundle.directory, CONFIG_FILE, change)
    with pytest.raises(CheckpointError, match=match):
        Checkpoint(bundle.directory)


def test_writing_rejects_wrong_tensors_by_name(tmp_path, tensors):
    without = {name: tensor for name, tensor in tensors.items() if name != "ctc.bias"}
    with pytest.raises(CheckpointError, match=r"ctc\.bias is missing"):
        write_checkpoint(tmp_path / "b", CONFIG, without, b"", {})
    with pytest.raises(CheckpointError, match="extra is not expected"):
        write_checkpoint(tmp_path / "b", CONFIG, tensors | {"extra": torch.zeros(1)}, b"", {})
    with pytest.raises(CheckpointError, match=r"ctc.bias has shape \(2,\), expected \(11,\)"):
        write_checkpoint(tmp_path / "b", CONFIG, tensors | {"ctc.bias": torch.zeros(2)}, b"", {})
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("has_ctc_head", [True, False])
def test_bundles_that_only_say_whether_there_is_a_ctc_head(bundle, has_ctc_head):
    def change(document: dict) -> None:
        del document["model"]["ctc"]
        document["model"]["has_ctc_head"] = has_ctc_head

    change_json(bundle.directory, CONFIG_FILE, change)
    assert Checkpoint(bundle.directory).config == dataclasses.replace(
        CONFIG, ctc=CtcConfig(10) if has_ctc_head else None
    )


def test_the_bundled_model_is_intact():
    checkpoint = Checkpoint(Path(__file__).parents[2] / "models" / "an4-rnnt-hybrid")
    assert set(checkpoint.source) == {"file", "sha256", "class"}
    assert checkpoint.tensors().keys() == tensor_shapes(checkpoint.config).keys()


FACTORIZED_CONFIG = dataclasses.replace(
    CONFIG, transducer=TransducerConfig(10, 6, 2, 7, "tanh", (), kind=FACTORIZED, ilm_beam=IlmPair(0.6, 0.4)), ctc=None
)


@pytest.fixture
def factorized(tmp_path) -> Checkpoint:
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(shape, generator=generator) for n, shape in tensor_shapes(FACTORIZED_CONFIG).items()}
    return write_checkpoint(tmp_path / "factorized", FACTORIZED_CONFIG, tensors, b"pieces", {})


def test_a_factorized_bundle(factorized):
    opened = Checkpoint(factorized.directory)
    assert opened.config == FACTORIZED_CONFIG
    assert opened.config.transducer.ilm_beam == (0.6, 0.4)
    assert opened.config.transducer.ilm_greedy == (1.0, 0.0)
    shapes = {name: tuple(tensor.shape) for name, tensor in opened.tensors("blank.", "acoustic.", "predictor.").items()}
    assert {name: shape for name, shape in shapes.items() if ".lstm." not in name} == {
        "predictor.embedding.weight": (11, 6),
        "predictor.output.weight": (10, 6),
        "predictor.output.bias": (10,),
        "blank.embedding.weight": (11, 7),
        "blank.encoder.weight": (7, 8),
        "blank.encoder.bias": (7,),
        "blank.output.weight": (1, 7),
        "blank.output.bias": (1,),
        "acoustic.weight": (10, 8),
        "acoustic.bias": (10,),
    }


def test_only_a_factorized_bundle_has_version_2_and_its_keys(bundle, factorized):
    plain, other = (json.loads((one.directory / CONFIG_FILE).read_text()) for one in (bundle, factorized))
    assert (plain["version"], other["version"]) == (1, 2)
    new = {"kind": "factorized", "ilm_beam": [0.6, 0.4], "ilm_greedy": [1.0, 0.0]}
    assert other["model"]["transducer"].items() >= new.items()
    assert list(plain["model"]["transducer"]) == [
        "vocabulary_size", "predictor_hidden", "predictor_layers", "joint_hidden", "joint_activation", "tdt_durations",
        "max_symbols",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "rnnt"}, "transducer.kind: 'rnnt' is not supported; supported: factorized, or no kind for RNN-T"),
        ({"kind": None}, "transducer.kind: None is not supported"),
        ({"ilm_beam": [0.6]}, r"ilm_beam: \[0.6\] .* supported: \[alpha, beta\] from 0 to 2 and from 0 to 10"),
        ({"ilm_beam": [2.1, 0]}, r"ilm_beam: \[2.1, 0\]"),
        ({"ilm_greedy": [1, 10.5]}, r"ilm_greedy: \[1, 10.5\]"),
        ({"ilm_greedy": [1, float("nan")]}, r"ilm_greedy: \[1, nan\]"),
        ({"ilm_greedy": [True, 0]}, r"ilm_greedy: \[True, 0\]"),
        ({"ilm_greedy": -1}, "ilm_greedy: -1"),
        ({"tdt_durations": [0, 1]}, r"tdt_durations: \[0, 1\] is not supported; supported: \[\] for kind factorized"),
        ({"joint_activation": "relu"}, "joint_activation: 'relu' .* supported: tanh for kind factorized"),
        ({"kind": "standard"}, r"ilm_beam: .* is not supported; supported: a pair of a transducer of kind factorized"),
        ({"beta": 1}, "does not fit the schema"),
    ],
)
def test_a_wrong_factorized_config_is_rejected(factorized, change, match):
    change_json(factorized.directory, CONFIG_FILE, lambda document: document["model"]["transducer"].update(change))
    with pytest.raises(CheckpointError, match=match):
        Checkpoint(factorized.directory)
