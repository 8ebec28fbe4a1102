"""Importing offline models from .nemo files: what they are, what older files leave out, and what is rejected."""

import re

import pytest

from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.config import LiveMenu
from penstock.model.nemo.importer import import_nemo
from tests.helpers.golden import GOLDEN
from tests.helpers.nemo_files import changed_config
from tests.helpers.offline_models import offline_bundle, unified_document, write_offline_nemo

CASES = ("rnnt_hybrid", "rnnt_batch_norm", "tdt_hybrid", "tdt_gaps")


@pytest.mark.parametrize("case", CASES)
def test_the_bundle_is_an_offline_model(tmp_path, case):
    checkpoint, streaming = offline_bundle(tmp_path, case), import_nemo(GOLDEN / f"{case}.nemo", tmp_path / "streaming")
    config = checkpoint.config
    assert config.encoder.is_offline
    assert config.features.is_normalized
    assert not streaming.config.features.is_normalized
    assert config.head_name == streaming.config.head_name
    bins = config.encoder.mel_bins // config.encoder.subsampling_factor
    assert config.encoder.subsampled_mel_bins[-1] == bins


@pytest.mark.parametrize(("case", "has_biases"), [("rnnt_hybrid", True), ("rnnt_batch_norm", False)])
def test_tensors_settle_what_older_files_leave_out(tmp_path, case, has_biases):
    def strip(document: dict) -> None:
        document["encoder"].pop("use_bias")
        document["decoder"]["prednet"] = {}
        document["joint"]["jointnet"] = {} if has_biases else {"activation": "tanh"}

    def strip_all(document: dict) -> None:
        strip(document)
        document["joint"].pop("jointnet")

    expected = offline_bundle(tmp_path, case)
    if not has_biases:  # its activation is not the usual one, so the file must name it
        with pytest.raises(CheckpointError, match=r"joint\.jointnet\.joint_hidden is missing"):
            import_nemo(write_offline_nemo(tmp_path / "old.nemo", case, strip), tmp_path / "old")
        return
    found = import_nemo(write_offline_nemo(tmp_path / "old.nemo", case, strip_all), tmp_path / "old")
    assert found.config == expected.config
    assert found.config.encoder.use_bias is has_biases
    tensors = expected.tensors()
    assert all((tensor == tensors[name]).all() for name, tensor in found.tensors().items())


def test_absent_biases_are_settled_too(tmp_path):
    def strip(document: dict) -> None:
        document["encoder"].pop("use_bias")

    path = write_offline_nemo(tmp_path / "old.nemo", "tdt_gaps", strip)
    assert import_nemo(path, tmp_path / "old").config.encoder.use_bias is False


@pytest.mark.parametrize("attention", ["rel_pos", "rel_pos_local_attn"])
def test_local_attention(tmp_path, attention):
    local = {"self_attention_model": attention, "att_context_size": [128, 64]}
    path = write_offline_nemo(tmp_path / "a.nemo", change=lambda document: document["encoder"].update(local))
    checkpoint = import_nemo(path, tmp_path / "bundle")
    assert Checkpoint(checkpoint.directory).config.encoder.attention_band == (128, 64)


def test_chunks_with_right_context(tmp_path):
    checkpoint = import_nemo(write_offline_nemo(tmp_path / "a.nemo", change=unified_document), tmp_path / "bundle")
    encoder = Checkpoint(checkpoint.directory).config.encoder
    assert encoder.live_menu == LiveMenu((70,), (1, 2, 7, 13), (0, 1, 13))
    assert encoder.is_offline and encoder.attention_band is None


def test_local_attention_needs_limits(tmp_path):
    local = {"self_attention_model": "rel_pos_local_attn"}
    path = write_offline_nemo(tmp_path / "a.nemo", change=lambda document: document["encoder"].update(local))
    with pytest.raises(CheckpointError, match=r"encoder\.att_context_size: \[-1, -1\] .*supported: \[left, right\]"):
        import_nemo(path, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("decoder.prediction.embed.weight", "decoder.prediction.embed.weight is missing"),
        ("joint.enc.weight", "joint.enc.weight is missing"),
        ("decoder.prediction.dec_rnn.lstm.weight_ih_l0", "decoder.prediction.dec_rnn.lstm.weight_ih_l0 is missing"),
    ],
)
def test_a_missing_tensor_that_would_settle_a_size_is_named(tmp_path, name, match):
    def strip(document: dict) -> None:
        document["decoder"]["prednet"] = {}
        document["joint"]["jointnet"] = {}

    path = write_offline_nemo(tmp_path / "bad.nemo", "rnnt_hybrid", strip, lambda state: state.pop(name))
    with pytest.raises(CheckpointError, match=re.escape(match)):
        import_nemo(path, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("section", "key", "value", "match"),
    [
        ("encoder", "causal_downsampling", True, "causal_downsampling: True .* cannot be mixed"),
        ("encoder", "conv_context_size", "causal", r"conv_context_size: 'causal' .*supported: \[4, 4\].*be mixed"),
        ("encoder", "att_context_size", [[70, 13], [70, 6]], r"att_context_size: \[\[70, 13\], \[70, 6\]\]"),
        ("encoder", "subsampling", "striding", "subsampling: 'striding' .*'dw_striding'"),
        ("encoder", "att_context_size", [128, -1], r"att_context_size: \[128, -1\] .*local attention"),
        ("encoder", "global_tokens", 1, "global_tokens: 1 .*global attention"),
        ("encoder", "conv_kernel_size", 8, "conv_kernel_size: 8"),
        ("preprocessor", "normalize", "all_features", "normalize: 'all_features' .*'per_feature'"),
    ],
)
def test_what_is_not_supported_is_named_with_what_is(tmp_path, section, key, value, match):
    path = write_offline_nemo(tmp_path / "bad.nemo", change=lambda document: document[section].update({key: value}))
    with pytest.raises(CheckpointError, match=match) as caught:
        import_nemo(path, tmp_path / "bundle")
    assert str(caught.value).startswith(f"CHECKPOINT_INVALID: {path}: {section}.{key}: ")
    assert not (tmp_path / "bundle").exists()


def test_a_streaming_model_with_normalized_features_is_rejected(tmp_path):
    path = changed_config(
        tmp_path / "a.nemo", lambda document: document["preprocessor"].update(normalize="per_feature")
    )
    with pytest.raises(CheckpointError, match=r"preprocessor\.normalize: 'per_feature' .*cannot be mixed"):
        import_nemo(path, tmp_path / "bundle")
