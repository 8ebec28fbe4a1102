"""Importing a .nemo: what comes out of a good one, and where. The bad ones: test_nemo_archive, _config, _weights."""

import io
import os
import shutil

import pytest
import torch
import yaml
from safetensors import safe_open

from penstock.cli import main
from penstock.errors import CheckpointError
from penstock.model.bundle import FORMAT_VERSION, Checkpoint, tensor_shapes
from penstock.model.bundle_files import sha256_of
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.model.source_tensors import hann_window, mel_filterbank
from tests.helpers.golden import GoldenCase, golden_case, golden_cases
from tests.helpers.nemo_files import (
    CONFIG,
    WEIGHTS,
    assert_rejected,
    changed_config,
    changed_state,
    nemo_members,
    nemo_state,
    write_ctc_nemo,
    write_nemo,
)

CASES = golden_cases()


def assert_same_front_end(window: torch.Tensor, filterbank: torch.Tensor, case: GoldenCase) -> None:
    """Equal to what another CPU computed, but for rounding.

    Window: half a float32 cosine, right to one unit in the last place on both CPUs, and its difference from a half,
    rounded on both: 2 u + 2 u. Filterbank: float64 rounded to float32 twice, where the last bit may go either way.
    """
    torch.testing.assert_close(window, case.window(), rtol=0, atol=2**-22)
    torch.testing.assert_close(filterbank, case.filterbank(), rtol=2**-22, atol=0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_golden_checkpoint_becomes_a_bundle(case: GoldenCase, tmp_path):
    checkpoint = import_nemo(case.nemo_path, tmp_path / "bundle")
    tensors = checkpoint.tensors()
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == tensor_shapes(checkpoint.config)
    assert checkpoint.config.encoder.contexts == tuple(AttentionContext(*pair) for pair in case.contexts)
    assert checkpoint.config.transducer.tdt_durations == case.durations
    assert_same_front_end(tensors["features.window"], tensors["features.mel_filterbank"], case)
    class_name = "EncDecHybridRNNTCTCBPEModel" if checkpoint.config.ctc else "EncDecRNNTBPEModel"
    assert checkpoint.source == {"file": case.nemo_path.name, "sha256": sha256_of(case.nemo_path), "class": class_name}


@pytest.mark.parametrize("head", [{}, {"num_classes": -1}, {"feat_in": None}], ids=["number", "list", "no width"])
def test_a_ctc_model_becomes_a_bundle_with_the_ctc_head_alone(tmp_path, head):
    checkpoint = import_nemo(
        write_ctc_nemo(tmp_path / "ctc.nemo", lambda decoder: decoder.update(head)), tmp_path / "b"
    )
    hybrid = import_nemo(golden_case("rnnt_hybrid").nemo_path, tmp_path / "hybrid")
    assert (checkpoint.config.transducer, checkpoint.config.ctc) == (None, hybrid.config.ctc)
    assert checkpoint.source["class"] == "EncDecCTCModelBPE"
    assert (checkpoint.config.head_name, hybrid.config.head_name) == ("CTC", "RNN-T + CTC")
    tensors, same = checkpoint.tensors(), hybrid.tensors("features.", "encoder.", "ctc.")
    assert tensors.keys() == same.keys()
    assert all(torch.equal(tensors[name], same[name]) for name in tensors)


@pytest.mark.parametrize(
    ("head", "match"),
    [
        ({"num_classes": 40}, r"has 48 pieces, expected 40 as decoder\.num_classes"),
        (
            {"num_classes": -1, "vocabulary": None},
            r"decoder\.num_classes: -1 is not supported; supported: the number of labels",
        ),
        ({"num_classes": 10**9}, r"decoder\.num_classes: 1000000000 is not supported"),
        ({"feat_in": 7}, r"decoder\.feat_in: 7 is not supported; supported: 24"),
        ({"add_blank": False}, r"decoder\.add_blank: False is not supported"),
        ({"_target_": "nemo.collections.asr.modules.LSTMDecoder"}, r"supported: ConvASRDecoder"),
    ],
)
def test_an_unsupported_ctc_head_is_named(tmp_path, head, match):
    assert_rejected(write_ctc_nemo(tmp_path / "ctc.nemo", lambda decoder: decoder.update(head)), match)


def test_a_tokenizer_with_another_piece_than_the_head_is_rejected(tmp_path):
    path = changed_config(tmp_path / "a.nemo", lambda document: document["joint"]["vocabulary"].__setitem__(5, "other"))
    assert_rejected(path, r"tokenizer.model: piece 5 is '.*', but 'other' in the head")


def test_configuration_values(tmp_path):
    config = import_nemo(golden_case("tdt_unsorted").nemo_path, tmp_path / "bundle").config
    features, encoder, transducer = config.features, config.encoder, config.transducer
    assert (features.sample_rate_hz, features.window_samples, features.hop_samples) == (16000, 320, 160)
    assert (features.fft_samples, features.mel_bins, features.preemphasis, features.log_guard) == (400, 80, 0.9, 1e-6)
    assert (encoder.n_layers, encoder.d_model, encoder.n_heads, encoder.d_feed_forward) == (2, 16, 2, 32)
    assert (encoder.conv_kernel_size, encoder.subsampling_factor, encoder.subsampling_channels) == (5, 4, 8)
    assert (encoder.has_conv_layer_norm, encoder.use_bias, encoder.xscaling) == (True, True, True)
    assert (transducer.vocabulary_size, transducer.predictor_layers, transducer.joint_activation) == (300, 1, "sigmoid")
    assert transducer.tdt_durations == (1, 0, 3)
    assert config.ctc is None
    other = import_nemo(golden_case("rnnt_batch_norm").nemo_path, tmp_path / "other").config
    assert (other.encoder.has_conv_layer_norm, other.encoder.use_bias, other.encoder.xscaling) == (False, False, False)
    assert (other.transducer.predictor_layers, other.encoder.mel_bins) == (2, 128)


@pytest.mark.parametrize("name", ["rnnt_batch_norm", "tdt_hybrid"])  # without and with a bias before the norm
def test_folded_batch_norm_is_convolution_then_batch_norm(name, tmp_path):
    state, checkpoint = nemo_state(name), import_nemo(golden_case(name).nemo_path, tmp_path / "b")
    layer = "encoder.layers.1.conv."
    weight, bias = state[f"{layer}depthwise_conv.weight"], state.get(f"{layer}depthwise_conv.bias")
    norm = {key: state[f"{layer}batch_norm.{key}"] for key in ("running_mean", "running_var", "weight", "bias")}
    inputs = torch.randn(2, len(weight), 30)
    expected = torch.nn.functional.conv1d(inputs, weight, bias, groups=len(weight))
    expected = torch.nn.functional.batch_norm(expected, **norm, training=False)
    folded = checkpoint.tensors("encoder.layers.1.convolution.depthwise")
    weight, bias = (folded[f"encoder.layers.1.convolution.depthwise.{part}"] for part in ("weight", "bias"))
    actual = torch.nn.functional.conv1d(inputs, weight[:, None], bias, groups=len(weight))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_half_stores_all_but_the_front_end_as_float16(tmp_path):
    path = golden_case("rnnt_hybrid").nemo_path
    half, full = import_nemo(path, tmp_path / "half", half=True), import_nemo(path, tmp_path / "full")
    with safe_open(half.directory / "weights.safetensors", framework="pt") as file:
        types = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - not a dict
    for name, dtype in types.items():
        assert dtype == (torch.float32 if name.startswith("features.") else torch.float16), name
    ours, theirs = half.tensors(), full.tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)  # golden weights are float16 numbers


def test_bfloat16_weights_and_useless_extra_files_are_accepted(tmp_path):
    state = {name: tensor.bfloat16() for name, tensor in nemo_state().items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    members = nemo_members() | {WEIGHTS: buffer.getvalue(), "vocab.txt": b"a", "notes/readme.md": b"b" * 2000}
    tensors = import_nemo(write_nemo(tmp_path / "a.nemo", members), tmp_path / "b").tensors()
    assert torch.equal(tensors["joint.encoder.bias"], state["joint.enc.bias"].float())


@pytest.mark.parametrize(("mel_bins", "name"), [(80, "mel80"), (128, "mel128")], ids=["80", "128"])
def test_computed_front_end_equals_nemos(mel_bins, name):
    case = next(case for case in CASES if case.front_end == name)
    assert_same_front_end(hann_window(400), mel_filterbank(16000, 512, mel_bins), case)


def test_absent_keys_have_nemos_defaults(tmp_path):
    def drop(document: dict) -> None:
        for key in ("xscaling", "untie_biases", "use_bias"):
            del document["encoder"][key]
        del document["preprocessor"]["sample_rate"], document["preprocessor"]["window"]
        del document["joint"]["num_classes"], document["decoding"], document["loss"]
        document["encoder"]["att_context_size"] = [14, 6]

    encoder = import_nemo(changed_config(tmp_path / "a.nemo", drop), tmp_path / "b").config.encoder
    assert (encoder.xscaling, encoder.use_bias, encoder.contexts) == (True, True, (AttentionContext(14, 6),))


def test_joint_without_dropout_has_its_last_layer_elsewhere(tmp_path):
    def move(state: dict) -> None:
        for part in ("weight", "bias"):
            state[f"joint.joint_net.1.{part}"] = state.pop(f"joint.joint_net.2.{part}")

    path = changed_state(tmp_path / "a.nemo", move)
    with pytest.raises(CheckpointError, match=r"joint\.joint_net\.2\.weight is missing"):
        import_nemo(path, tmp_path / "b")
    document = yaml.safe_load(nemo_members()[CONFIG])
    document["joint"]["jointnet"]["dropout"] = 0.0
    state = nemo_state()
    move(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    members = nemo_members() | {CONFIG: yaml.safe_dump(document).encode(), WEIGHTS: buffer.getvalue()}
    import_nemo(write_nemo(tmp_path / "c.nemo", members), tmp_path / "b")


def test_a_bundle_is_replaced_only_on_request_and_keeps_its_other_files(tmp_path):
    first, second = (golden_case(name).nemo_path for name in ("rnnt_hybrid", "tdt_gaps"))
    bundle = import_nemo(first, tmp_path / "bundle").directory
    (bundle / "README.md").write_text("a model card")
    with pytest.raises(
        CheckpointError, match="is a bundle; accepted: a new or empty directory, or this one with --force"
    ):
        import_nemo(second, bundle)
    assert not Checkpoint(bundle).config.transducer.is_tdt
    import_nemo(second, bundle, replace=True)
    assert Checkpoint(bundle).config.transducer.is_tdt
    assert (bundle / "README.md").read_text() == "a model card"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


@pytest.mark.parametrize("is_another_there", [False, True])
def test_a_bundle_whose_replacement_fails_keeps_its_other_files(tmp_path, monkeypatch, is_another_there):
    """The last step fails, also because another process has just put its own bundle there."""
    first, second = (golden_case(name).nemo_path for name in ("rnnt_hybrid", "tdt_gaps"))
    bundle = import_nemo(first, tmp_path / "bundle").directory
    (bundle / "README.md").write_text("a model card")
    (bundle / "notes").mkdir()
    (bundle / "notes" / "today.txt").write_text("fine")

    def fail(source, target):
        if is_another_there:
            import_nemo(first, tmp_path / "another").directory.rename(target)
        raise OSError(39, "Directory not empty")

    with monkeypatch.context() as patch:
        replace = os.replace
        patch.setattr(os, "replace", lambda s, t: fail(s, t) if t == bundle else replace(s, t))
        with pytest.raises(CheckpointError, match="Directory not empty"):
            import_nemo(second, bundle, replace=True)
    assert not Checkpoint(bundle).config.transducer.is_tdt
    assert (bundle / "README.md").read_text() == "a model card"
    assert (bundle / "notes" / "today.txt").read_text() == "fine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_a_failed_import_leaves_everything_as_it_was(tmp_path):
    bundle = import_nemo(golden_case("rnnt_hybrid").nemo_path, tmp_path / "bundle").directory
    broken = write_nemo(tmp_path / "a.nemo", nemo_members() | {WEIGHTS: b"nothing"})
    before = sorted(tmp_path.iterdir())
    for target, replace in ((bundle, True), (tmp_path / "new", False)):
        with pytest.raises(CheckpointError):
            import_nemo(broken, target, replace=replace)
    assert sorted(tmp_path.iterdir()) == before
    Checkpoint(bundle)


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_is_written_through(tmp_path, exists):
    (tmp_path / "disk").mkdir()
    if exists:
        (tmp_path / "disk" / "bundle").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "bundle")
    for name in ("rnnt_hybrid", "tdt_gaps"):
        import_nemo(golden_case(name).nemo_path, tmp_path / "link", replace=True)
    assert (tmp_path / "link").is_symlink()
    assert Checkpoint(tmp_path / "disk" / "bundle").config.transducer.is_tdt


def test_a_directory_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for target in ("home", "file"):
        with pytest.raises(CheckpointError, match="accepted: a new"):
            import_nemo(golden_case("rnnt_hybrid").nemo_path, tmp_path / target, replace=True)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_command(tmp_path, capsys):
    path, bundle = str(golden_case("tdt_gaps").nemo_path), tmp_path / "bundle"
    assert main(["import", path, str(bundle), "--half"]) == 0
    assert "TDT [0, 2, 4], 2 layers of 24, 48 tokens, contexts [9,2] [8,0]" in capsys.readouterr().out
    assert main(["import", path, str(bundle)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("penstock: error: ") and captured.err.count("\n") == 1
    assert main(["import", path, str(bundle), "--force"]) == 0
    assert main(["import", str(bundle), str(tmp_path / "x")]) == 1
    assert f"{bundle}: is a bundle already; use it with --model {bundle}" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "none.nemo"), str(tmp_path / "x")]) == 1
    assert "none.nemo: no such file" in capsys.readouterr().err
    assert main(["import", "a" * 300, str(tmp_path / "x")]) == 1
    assert "a: cannot be read: File name too long" in capsys.readouterr().err


def test_bundles_do_not_depend_on_where_the_file_lies(tmp_path):
    copy = tmp_path / "deep" / "rnnt_hybrid.nemo"
    copy.parent.mkdir()
    shutil.copy(golden_case("rnnt_hybrid").nemo_path, copy)
    one, two = import_nemo(golden_case("rnnt_hybrid").nemo_path, tmp_path / "1"), import_nemo(copy, tmp_path / "2")
    for name in ("config.json", "weights.safetensors", "tokenizer.model"):
        assert (one.directory / name).read_bytes() == (two.directory / name).read_bytes()
    assert f'"version": {FORMAT_VERSION}' in (one.directory / "config.json").read_text()
