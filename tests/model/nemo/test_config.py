"""Reading model_config.yaml: what would change the results and is not supported is rejected with key and value."""

import functools

import pytest

from penstock.errors import CheckpointError
from penstock.model import section
from penstock.model.nemo.config import read_nemo_config
from penstock.model.section import parse_yaml
from tests.helpers.nemo_files import CONFIG, nemo_members

MIXED = "cannot be mixed"


def document(case: str = "rnnt_hybrid") -> dict:
    return parse_yaml(nemo_members(case)[CONFIG])


def set_key(values: dict, path: str, value: object) -> dict:
    *sections, key = path.split(".")
    functools.reduce(lambda section, name: section.setdefault(name, {}), sections, values)[key] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "supported"),
    [
        ("target", "nemo.collections.asr.models.EncDecMultiTaskModel", "EncDecRNNTBPEModel or .*; its decoder attends"),
        ("target", "ngram_lm_batched.NGramGPULanguageModel", "language model; give the ARPA file"),
        ("target", ["EncDecRNNTBPEModel"], "EncDecRNNTBPEModel or EncDecHybridRNNTCTCBPE"),
        ("tokenizer.type", "wpe", "'bpe'"),
        ("tokenizer", {"type": "agg", "langs": {}}, "a tokenizer per language"),
        ("tokenizer", {"type": "agg", "langs": {"en": 3}}, "a mapping"),
        ("tokenizer", {"type": "agg", "langs": {False: {"type": "wpe"}}}, "'bpe'"),
        ("adapters", {"mine": {"_target_": "LinearAdapter"}}, "disabled adapters; .*set_enabled_adapters"),
        ("tokenizer.custom_tokenizer", {"_target_": "os.system"}, "nothing"),
        ("tokenizer.model_path", 3, "the name of a member"),
        ("encoder._target_", "nemo.collections.asr.modules.SqueezeformerEncoder", "ConformerEncoder"),
        ("encoder.conv_context_size", None, MIXED),
        ("encoder.att_context_style", "regular", MIXED),
        ("encoder.att_context_style", "other", "'chunked_limited' or 'regular' or 'chunked_limited_with_rc'"),
        ("encoder.att_chunk_context_size", [[70], [1], [0]], "nothing"),
        ("encoder.att_context_size", [-1, -1], MIXED),
        ("encoder.att_context_size", None, r"\[left, right\]"),
        ("encoder.att_context_size", [[70, 13, 2]], r"\[left, right\]"),
        ("encoder.causal_downsampling", False, MIXED),
        ("encoder.subsampling", "striding", "'dw_striding'"),
        ("encoder.self_attention_model", "rel_pos_local_attn", "'rel_pos'"),
        ("encoder.conv_norm_type", "group_norm4", "'layer_norm' or 'batch_norm'"),
        ("encoder.conv_context_style", "dcc", "'regular'"),
        ("encoder.conv_dual_mode", True, "False"),
        ("encoder.global_tokens", 2, "tokens with global attention"),
        ("encoder.feat_out", 512, "-1 or d_model"),
        ("encoder.feat_in", 64, "preprocessor.features 80"),
        ("encoder.use_bias", "yes", "true or false"),
        ("encoder.n_layers", 10**9, "an integer from 1 to 256"),
        ("encoder.d_model", True, "an integer"),
        ("encoder.new_attention_sink", 4, "unknown key"),
        ("encoder", None, "encoder is missing"),
        ("encoder", [1], "a mapping"),
        ("preprocessor._target_", "nemo.collections.asr.modules.AudioToMFCCPreprocessor", "AudioToMelSpectrogram"),
        ("preprocessor.normalize", "per_feature", MIXED),
        ("preprocessor.window", "hamming", "'hann'"),
        ("preprocessor.mag_power", 1.0, "2"),
        ("preprocessor.frame_splicing", 3, "1"),
        ("preprocessor.log", False, "True"),
        ("preprocessor.log_zero_guard_type", "clamp", "'add'"),
        ("preprocessor.log_zero_guard_value", float("nan"), "a number"),
        ("preprocessor.exact_pad", True, "False"),
        ("preprocessor.mel_norm", None, "'slaney'"),
        ("preprocessor.use_torchaudio", True, "False"),
        ("preprocessor.n_fft", 10**6, "an integer from 1 to 16384"),
        ("preprocessor.window_size", 1e-9, "at least one sample"),
        ("preprocessor.n_window_size", 400, "either this or window_size"),
        ("decoder._target_", "nemo.collections.asr.modules.StatelessTransducerDecoder", "RNNTDecoder"),
        ("decoder.normalization_mode", "layer", "nothing"),
        ("decoder.blank_as_pad", False, "True"),
        ("decoder.prednet.rnn_hidden_size", 640, "-1 or pred_hidden"),
        ("decoder.vocab_size", -1, "an integer"),
        ("joint._target_", "nemo.collections.asr.modules.HATJoint", "RNNTJoint"),
        ("joint.num_classes", 49, "48, as decoder.vocab_size"),
        ("joint.jointnet.encoder_hidden", 512, "24, as encoder.d_model"),
        ("joint.num_extra_outputs", 5, "0 without decoding.durations"),
        ("decoding.durations", [0, 1], "2, one for each of decoding.durations"),
        ("decoding.big_blank_durations", [2, 4], "RNN-T or TDT"),
        ("loss.loss_name", "multiblank_rnnt", "RNN-T or TDT"),
        ("aux_ctc.decoder._target_", "nemo.collections.asr.modules.LSTMDecoder", "ConvASRDecoder"),
        ("aux_ctc.decoder.num_classes", 5, "48, as decoder.vocab_size"),
    ],
)
def test_unsupported_values(path, value, supported):
    with pytest.raises(CheckpointError, match=supported) as caught:
        read_nemo_config(set_key(document(), path, value))
    message = str(caught.value)
    assert path.rpartition(".")[2].removeprefix("n_") in message or "window_size" in message
    if value is not None and not isinstance(value, dict) and path != "encoder":
        name = str(value).rpartition(".")[2]  # of a class
        assert name[:20] in message or repr(value) in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("decoding.durations", [0, 1, 2, 3]),
        ("decoding.durations", None),
        ("loss.tdt_kwargs.durations", [0, 1, 2, 3, 8]),
        ("model_defaults.tdt_durations", [0, 1, 2, 3, 8]),
        ("joint.num_extra_outputs", 4),
        ("joint.num_extra_outputs", 0),
    ],
)
def test_every_place_of_the_durations_must_agree(path, value):
    values = set_key(document("tdt_hybrid"), path, value)
    if value is None:  # the other places still say it
        assert read_nemo_config(values).model.transducer.tdt_durations == (0, 1, 2, 3, 4)
        return
    with pytest.raises(CheckpointError, match=r"durations"):
        read_nemo_config(values)


@pytest.mark.parametrize("durations", [[0, 1, 1], [0, -1, 2], [0], [0, 1.5, 2], "abc"])
def test_bad_duration_lists(durations):
    values = document("tdt_hybrid")
    for path in ("decoding.durations", "loss.tdt_kwargs.durations", "model_defaults.tdt_durations"):
        set_key(values, path, durations)
    set_key(values, "joint.num_extra_outputs", len(durations))
    with pytest.raises(CheckpointError, match="durations: "):
        read_nemo_config(values)


def test_training_keys_change_nothing():
    values, plain = document(), read_nemo_config(document())
    set_key(values, "spec_augment", {"_target_": "os.system", "freq_masks": 2})
    set_key(values, "train_ds", {"manifest_filepath": "/nowhere"})
    set_key(values, "optim", {"name": "adamw"})
    set_key(values, "encoder.dropout", 0.5)
    set_key(values, "encoder.unknown_but_off", None)
    set_key(values, "preprocessor.dither", 0.1)
    set_key(values, "preprocessor.pad_to", 16)
    set_key(values, "encoder.conv_context_size", [8, 0])
    set_key(values, "encoder.reduction_factor", 1)
    assert read_nemo_config(values) == plain


@pytest.mark.parametrize(
    ("value", "guard"), [("tiny", 1.1754943508222875e-38), ("eps", 1.1920928955078125e-07), ("1e-5", 1e-5)]
)
def test_named_log_guards(value, guard):
    values = set_key(document(), "preprocessor.log_zero_guard_value", value)
    assert read_nemo_config(values).model.features.log_guard == guard


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"a: &x [1, 1]\nb: [*x, *x]", "aliases are not accepted"),
        (b"a: !!python/object/apply:os.system ['true']", "not plain YAML"),
        (b"a: " + b"[" * 10_000, "nested deeper|not plain YAML"),
        (b"a: [" + b"[" * 50 + b"]" * 51, "nested deeper"),
        (b"- 1\n- 2", "accepted: a mapping"),
        (b"", "accepted: a mapping"),
        (b"a: [1", "not plain YAML"),
        (b"\xff\xfe\x00", "not plain YAML|accepted: a mapping"),
        (b"a: " + b"9" * 5000, "not plain YAML"),
        (b"? [1, 2]\n: 3", "not plain YAML"),
        (b"a: !!bool x", "not plain YAML"),
        (b"a: !!timestamp x", "not plain YAML"),
    ],
)
def test_hostile_yaml(text, match):
    with pytest.raises(CheckpointError, match=match):
        parse_yaml(text)


def test_values_of_a_yaml_are_bounded(monkeypatch):
    """Each takes time, and a scalar of many numbers with colons grows with the square of its length."""
    text = b"a: [" + b"1, " * 30 + b"1]\nb: 1" + b":1" * 30
    assert parse_yaml(text)["a"] == [1] * 31
    for name, limit, match in (("EVENTS", 20, "more than 20 values"), ("SCALAR", 40, "more than 40 characters")):
        with monkeypatch.context() as patch:
            patch.setattr(section, f"MAX_YAML_{name}", limit)
            with pytest.raises(CheckpointError, match=match):
                parse_yaml(text)


def test_an_alias_bomb_costs_nothing():
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 20)]
    with pytest.raises(CheckpointError, match="aliases"):
        parse_yaml("\n".join(["l0: &l0 [x]", *levels]).encode())
