"""Bundles that store int8: as exact as a choice at the start, and errors that name what is damaged."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock import linear
from penstock.cli import main
from penstock.encoder import int8
from penstock.encoder.int8 import Int8Choice, activation_bits
from penstock.encoder.precision import open_encoder, open_window_encoder, relative_error
from penstock.errors import CheckpointError, SettingError
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import CONFIG_FILE, WEIGHTS_FILE
from penstock.recognizer import StreamingRecognizer
from tests.helpers.int8 import CONTEXT, MAX_ENCODER_ERROR, bundled_mels
from tests.helpers.streaming import encode_streams

pytestmark = pytest.mark.skipif(not activation_bits(), reason="this torch has no int8 product for this CPU")


@pytest.fixture(scope="module")
def whole_bundle(bundled_model, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "MIN_PACKED_NUMBERS", 0)
        return imported(bundled_model, tmp_path_factory.mktemp("int8") / "bundle").directory


@pytest.fixture
def int8_bundle(whole_bundle, converts_all, tmp_path) -> Checkpoint:
    """A copy that may be damaged."""
    return Checkpoint(shutil.copytree(whole_bundle, tmp_path / "int8"))


def imported(source, directory) -> Checkpoint:
    assert main(["import", str(source), str(directory), "--precision", "int8"]) == 0
    return Checkpoint(directory)


@pytest.mark.parametrize("name", ["an4-rnnt-hybrid", pytest.param("an4-offline", marks=pytest.mark.nightly)])
def test_a_stored_choice_is_as_exact_as_one_at_the_start(bundled_model, converts_all, monkeypatch, tmp_path, name):
    source = Checkpoint(bundled_model.parent / name)
    monkeypatch.setattr(int8, "activation_bits", lambda: 7)
    stored = imported(source.directory, tmp_path / "int8")
    numbers = load_file(stored.directory / WEIGHTS_FILE)
    assert {each for each, tensor in numbers.items() if tensor.dtype == torch.int8} == stored.int8
    assert len(stored.int8) > 65

    def encode(checkpoint: Checkpoint, precision: str) -> tuple[torch.Tensor, Int8Choice | None]:
        if name == "an4-offline":
            window = open_window_encoder(checkpoint, precision=precision)
            return window.encode([int8.speech_mel(checkpoint)])[0], window.int8
        encoder = open_encoder(checkpoint, CONTEXT, 3, precision=precision)
        return torch.cat(list(encode_streams(encoder, bundled_mels(checkpoint)).values())), encoder.int8

    exact, _ = encode(source, "float32")
    (expected, chosen), (found, found_choice) = encode(source, "int8"), encode(stored, "auto")
    assert found_choice.int8 == chosen.int8  # the smoothing is chosen for another context
    assert relative_error(found, exact) < 1.3 * relative_error(expected, exact)


def test_a_stored_bundle_is_int8_or_an_error(int8_bundle):
    with pytest.raises(SettingError, match="is stored in int8, and precision is 'float32'; accepted: auto, int8"):
        StreamingRecognizer(int8_bundle.directory, CONTEXT[:2], precision="float32")
    with pytest.raises(SettingError, match="is stored in int8, which needs the CPU, not cuda"):
        open_encoder(int8_bundle, CONTEXT, 1, "cuda", "auto")


def test_a_stored_bundle_is_computed_in_float32_without_operators(int8_bundle, other_operators, caplog):
    chunks = bundled_mels(int8_bundle)
    found = encode_streams(open_encoder(int8_bundle, CONTEXT, 3, precision="int8"), chunks)
    activation_bits.cache_clear()
    other_operators.setattr(torch.ops, "quantized", SimpleNamespace())
    encoder = open_encoder(int8_bundle, CONTEXT, 3)
    assert "has no int8 product for this CPU: float32 is used" in caplog.text
    for slot, frames in encode_streams(encoder, chunks).items():
        assert 1e-4 < relative_error(found[slot], frames) < MAX_ENCODER_ERROR[7]


NAME = "encoder.layers.1.feed_forward1.up.weight"
DAMAGES = {
    "scale missing": (f"{NAME}.largest", lambda t: None, "is missing"),
    "scale zero": (f"{NAME}.largest", lambda t: t.index_fill(0, torch.tensor([3]), 0.0), "not positive"),
    "scale NaN": (f"{NAME}.largest", lambda t: t * float("nan"), "is not finite"),
    "scale infinite": (f"{NAME}.largest", lambda t: t * float("inf"), "is not finite"),
    "factor negative": (f"{NAME}.factors", lambda t: -t, "not positive"),
    "scales of another shape": (f"{NAME}.largest", lambda t: t[:-1].clone(), "expected floating"),
    "numbers of another shape": (NAME, lambda t: t[:, :-1].contiguous(), "expected int8"),
    "numbers of another type": (NAME, lambda t: t.float(), "expected int8"),
}


@pytest.mark.parametrize(("name", "change", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_tensors(int8_bundle, name, change, message):
    path = int8_bundle.directory / WEIGHTS_FILE
    tensors = load_file(path)
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else {**tensors, name: changed}, path)
    with pytest.raises(CheckpointError, match=f"{name} .*{message}"):
        open_encoder(int8_bundle, CONTEXT, 1)


def test_a_truncated_file(int8_bundle):
    path = int8_bundle.directory / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_encoder(int8_bundle, CONTEXT, 1)


@pytest.mark.parametrize("change", [{"precision": "int4"}, {"int8": ["other"]}, {"int8": 3}, {"precision": "float32"}])
def test_damaged_configurations(int8_bundle, change):
    path = int8_bundle.directory / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=r'"precision"|"int8"'):
        Checkpoint(int8_bundle.directory)


def test_nothing_to_store(bundled_model, tmp_path, caplog):
    checkpoint = imported(bundled_model, tmp_path / "float32")
    assert not checkpoint.int8 and caplog.text.count("no product is large and exact enough for int8") == 1
