"""Importing Transformers format: what comes out of a good checkpoint. The bad ones: test_config, _files, _weights."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.model.tokenizer import Tokenizer
from penstock.model.transformers.importer import import_transformers
from tests.helpers.transformers_files import (
    LEFT,
    PLAIN,
    RIGHTS,
    WITH_PROMPTS,
    change_json,
    write_same_as_nemo,
    write_transformers,
)


def import_pair(folder: Path, case: str) -> tuple[Checkpoint, Checkpoint]:
    """The same model imported from Transformers format and from a .nemo."""
    ours = import_transformers(write_transformers(folder / "hf", case), folder / "a")
    return ours, import_nemo(write_same_as_nemo(folder / "en.nemo", case), folder / "b")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Checkpoint, Checkpoint]:
    return import_pair(tmp_path_factory.mktemp("pair"), PLAIN)


@pytest.fixture(scope="module")
def pair_with_prompts(tmp_path_factory) -> tuple[Checkpoint, Checkpoint]:
    return import_pair(tmp_path_factory.mktemp("pair"), WITH_PROMPTS)


@pytest.fixture(params=[PLAIN, WITH_PROMPTS])
def each_pair(request, pair, pair_with_prompts) -> tuple[Checkpoint, Checkpoint]:
    return pair if request.param == PLAIN else pair_with_prompts


def test_both_formats_of_a_model_become_the_same_bundle(each_pair):
    ours, theirs = each_pair
    assert ours.config == theirs.config
    tensors, expected = ours.tensors(), theirs.tensors()
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        if name.startswith("features."):  # computed here, stored there by another CPU
            torch.testing.assert_close(tensors[name], tensor, rtol=2**-22, atol=2**-22)
        else:
            assert torch.equal(tensors[name], tensor), name


def test_both_tokenizers_encode_and_decode_alike(each_pair):
    ours, theirs = (Tokenizer(checkpoint.tokenizer_path) for checkpoint in each_pair)
    draw = random.Random(0)
    for _ in range(3000):
        line = "".join(draw.choices([*"  seventhlorupfäfw?", " <en-US>", "<de-DE>"], k=draw.randint(0, 30)))
        assert ours.encode(line) == theirs.encode(line), line
    for _ in range(2000):
        tokens = draw.choices(range(ours.size), k=draw.randint(0, 20))
        assert ours.decode(tokens) == theirs.decode(tokens), tokens


def test_source_and_contexts(pair, tmp_path):
    checkpoint = pair[0]
    assert checkpoint.source.keys() == {"sha256", "class"}
    assert checkpoint.source["class"] == "NemotronAsrStreamingForRNNT"
    assert checkpoint.config.encoder.contexts == tuple(AttentionContext(LEFT, right) for right in RIGHTS)
    again = import_transformers(
        write_transformers(tmp_path / "elsewhere"), tmp_path / "b", origin={"hub": "org/name", "commit": "c0ffee"}
    )
    assert again.source == checkpoint.source | {"hub": "org/name", "commit": "c0ffee"}


def test_older_releases_have_the_front_end_in_a_file_of_its_own(tmp_path):
    source = write_transformers(tmp_path / "hf")
    expected = import_transformers(source, tmp_path / "a").config
    front_end = json.loads((source / "processor_config.json").read_text())["feature_extractor"]
    change_json(source, "processor_config.json", lambda document: document.pop("feature_extractor"))
    (source / "preprocessor_config.json").write_text(json.dumps(front_end))
    assert import_transformers(source, tmp_path / "b").config == expected


def test_shards_are_one_model(tmp_path):
    source = write_transformers(tmp_path / "hf")
    expected = import_transformers(source, tmp_path / "a").tensors()
    state = load_file(source / "model.safetensors")
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: state[name] for name in part}, source / shard)
    places = {name: shard for shard, part in shards.items() for name in part}
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    tensors = import_transformers(source, tmp_path / "b").tensors()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_floating_types_become_float32_and_half_stays_half(tmp_path, dtype):
    source = write_transformers(tmp_path / "hf")
    path = source / "model.safetensors"
    state = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(state, path)
    full, half = import_transformers(source, tmp_path / "a"), import_transformers(source, tmp_path / "b", half=True)
    assert stored_types(full) == {torch.float32}
    assert stored_types(half) == {torch.float32, torch.float16}  # the front end stays float32
    expected = state["joint.head.bias"].float()
    assert torch.equal(full.tensors()["joint.output.bias"], expected)


def stored_types(checkpoint: Checkpoint) -> set[torch.dtype]:
    with safe_open(Path(checkpoint.directory) / "weights.safetensors", framework="pt") as file:
        return {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - not a dict
