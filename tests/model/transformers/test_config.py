"""Configurations of Transformers that are rejected: every key that matters, removed or wrong, is named."""

import copy

import pytest

from tests.helpers.transformers_files import (
    assert_rejected,
    change_json,
    config_document,
    processor_document,
    write_transformers,
)

WITHOUT_EFFECT = {
    "architectures", "dtype", "initializer_range", "is_encoder_decoder", "pad_token_id", "transformers_version",
    "activation_dropout", "attention_dropout", "dropout", "dropout_positions", "layerdrop", "max_position_embeddings",
    "padding_side", "padding_value", "return_attention_mask", "blank_token", "processor_class",
}  # fmt: skip
OPTIONAL = {"num_key_value_heads", "default_num_lookahead_tokens", "mel_filters_dtype"}


def keys(document: dict, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all keys that matter."""
    found = []
    for key, value in document.items():
        if key not in WITHOUT_EFFECT:
            found.append((*path, key))
            found += keys(value, (*path, key)) if isinstance(value, dict) else []
    return found


CASES = [
    (file, path)
    for file, document in (("config.json", config_document()), ("processor_config.json", processor_document()))
    for path in keys(document)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_transformers(tmp_path_factory.mktemp("config") / "hf")


@pytest.mark.parametrize(
    ("file", "path"), CASES, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
@pytest.mark.parametrize("wrong", ["removed", "mistyped"])
def test_a_key_that_matters(whole, file, path, wrong):
    before = (whole / file).read_text()

    def spoil(document: dict) -> None:
        for key in path[:-1]:
            document = document[key]
        if wrong == "removed":
            del document[path[-1]]
        else:
            document[path[-1]] = ["no"]

    if wrong == "removed" and path[-1] in OPTIONAL:
        return
    change_json(whole, file, spoil)
    try:
        other_file = path == ("feature_extractor",) and wrong == "removed"  # then the older place is read
        assert_rejected(whole, "preprocessor_config.json" if other_file else rf"{file}: .*{path[-1]}")
    finally:
        (whole / file).write_text(before)


@pytest.mark.parametrize(
    ("file", "change", "match"),
    [
        ("config.json", {"model_type": "whisper"}, r"model_type: 'whisper' is not supported; supported: nemotron_asr"),
        ("config.json", {"blank_token_id": 0}, r"blank_token_id: 0 is not supported; supported: 48, the last of"),
        ("config.json", {"hidden_act": "gelu"}, r"hidden_act: 'gelu' is not supported; supported: 'relu'"),
        ("config.json", {"quantization_config": {"bits": 4}}, r"quantization_config: .* unknown key"),
        ("config.json", {"encoder_config.hidden_act": "relu"}, r"encoder_config\.hidden_act: 'relu'.*'silu'"),
        ("config.json", {"encoder_config.convolution_bias": False}, r"convolution_bias: False.*equal attention_bias"),
        ("config.json", {"encoder_config.subsampling_conv_stride": 3}, r"subsampling_conv_stride: 3"),
        ("config.json", {"encoder_config.num_key_value_heads": 1}, r"num_key_value_heads: 1"),
        ("config.json", {"encoder_config.head_dim": 2}, r"head_dim: 2"),
        ("config.json", {"encoder_config.sliding_window": 8}, r"sliding_window: 8 .*one more than a multiple of"),
        ("config.json", {"encoder_config.default_num_lookahead_tokens": 3}, r"default_num_lookahead_tokens: 3.*2, 0"),
        (
            "config.json",
            {"encoder_config.supported_num_lookahead_tokens": [1]},
            r"supported_num_lookahead_tokens: \[1\]",
        ),
        ("config.json", {"encoder_config.num_mel_bins": 64}, r"num_mel_bins: 64 .*must equal feature_size"),
        ("processor_config.json", {"supported_num_lookahead_tokens": []}, r"supported_num_lookahead_tokens: \[\]"),
        ("processor_config.json", {"supported_num_lookahead_tokens": [-1]}, r"right contexts from 0"),
        (
            "processor_config.json",
            {"feature_extractor.mel_filters_dtype": "bfloat16"},
            r"mel_filters_dtype: 'bfloat16'",
        ),
        ("processor_config.json", {"feature_extractor.do_normalize": True}, r"do_normalize: True.*unknown key"),
        (
            "processor_config.json",
            {"feature_extractor.feature_extractor_type": "ParakeetFeatureExtractor"},
            r"feature_extractor_type: 'ParakeetFeatureExtractor'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_unsupported_value_is_named_with_what_is_accepted(tmp_path, file, change, match):
    source = write_transformers(tmp_path / "hf")

    def spoil(document: dict) -> None:
        for path, value in change.items():
            *sections, key = path.split(".")
            place = document
            for section in sections:
                place = place[section]
            place[key] = copy.deepcopy(value)

    change_json(source, file, spoil)
    assert_rejected(source, rf"{file}: .*{match}")


def test_a_missing_processor_is_not_replaced_by_defaults(tmp_path):
    """Transformers assumes [13, 6, 1, 0] then, whatever the model was trained with."""
    source = write_transformers(tmp_path / "hf")
    (source / "processor_config.json").unlink()
    assert_rejected(source, r"processor_config\.json: cannot be read")
