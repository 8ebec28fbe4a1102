"""Importing offline models (Parakeet) in Transformers format."""

import json

import pytest
import torch
from safetensors.torch import load_file

from penstock.model.transformers.importer import import_transformers
from tests.helpers.offline_models import offline_bundle, write_offline_transformers
from tests.helpers.transformers_files import assert_rejected, change_json, change_weights, sources_of


@pytest.mark.parametrize(("kind", "parts"), [("tdt", ("encoder.", "predictor.")), ("ctc", ("encoder.", "ctc."))])
def test_both_formats_give_the_same_bundle(tmp_path, kind, parts):
    found = import_transformers(write_offline_transformers(tmp_path / "hf", kind), tmp_path / "bundle")
    expected = offline_bundle(tmp_path, "tdt_hybrid")
    assert found.config.encoder == expected.config.encoder
    assert found.config.features == expected.config.features
    assert found.config.head_name == kind.upper()
    assert found.config.transducer is None or found.config.transducer.tdt_durations == (0, 1, 2, 3, 4)
    tensors, others = found.tensors(*parts), expected.tensors(*parts)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("kind", ["tdt", "ctc"])
def test_every_tensor_has_a_source(tmp_path, kind):
    directory = write_offline_transformers(tmp_path / "hf", kind)
    config = import_transformers(directory, tmp_path / "bundle").config
    stored = load_file(directory / "model.safetensors")
    assert {source.name: source.shape for source in sources_of(config)} == {
        name: tuple(tensor.shape) for name, tensor in stored.items() if not name.endswith("num_batches_tracked")
    }


def test_an_rnnt_has_no_durations(tmp_path):
    directory = write_offline_transformers(tmp_path / "hf")
    change_json(directory, "config.json", lambda document: document.update(model_type="parakeet_rnnt"))
    assert_rejected(directory, r"config\.json: durations: \[0, 1, 2, 3, 4\] .*unknown key")


def test_the_front_end_may_have_a_file_of_its_own(tmp_path):
    directory = write_offline_transformers(tmp_path / "hf")
    front_end = json.loads((directory / "processor_config.json").read_text())["feature_extractor"]
    (directory / "processor_config.json").unlink()
    (directory / "preprocessor_config.json").write_text(json.dumps(front_end))
    assert import_transformers(directory, tmp_path / "bundle").config.features.is_normalized


@pytest.mark.parametrize(
    ("file", "path", "value", "match"),
    [
        ("config.json", "model_type", "parakeet_aed", "supported: nemotron_asr_streaming or .*parakeet_tdt"),
        ("config.json", "durations", [], r"durations: \[\]"),
        ("config.json", "durations", [0, -1], r"durations: \[0, -1\]"),
        ("config.json", "blank_token_id", 0, "supported: 48"),
        ("config.json", "encoder_config.model_type", "nemotron_asr_streaming_encoder", "'parakeet_encoder'"),
        ("config.json", "encoder_config.conv_kernel_size", 6, "conv_kernel_size: 6 .*an odd number"),
        ("config.json", "encoder_config.sliding_window", 71, "sliding_window: 71 .*unknown key"),
        ("processor_config.json", "supported_num_lookahead_tokens", [6], "supported_num_lookahead_tokens: .*unknown"),
        (
            "processor_config.json",
            "feature_extractor.feature_extractor_type",
            "NemotronAsrStreamingFeatureExtractor",
            "'ParakeetFeatureExtractor'",
        ),
    ],
)
def test_an_unsupported_value_is_named_with_what_is_accepted(tmp_path, file, path, value, match):
    directory = write_offline_transformers(tmp_path / "hf")

    def spoil(document: dict) -> None:
        *sections, key = path.split(".")
        for section in sections:
            document = document[section]
        document[key] = value

    change_json(directory, file, spoil)
    assert_rejected(directory, f"{file}: .*{match}")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("encoder.layers.0.conv.norm.running_var", "running_var is missing"),
        ("encoder.subsampling.layers.5.weight", r"layers\.5\.weight is missing"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path, name, match):
    directory = write_offline_transformers(tmp_path / "hf")
    change_weights(directory, lambda state: state.pop(name))
    assert_rejected(directory, match)
