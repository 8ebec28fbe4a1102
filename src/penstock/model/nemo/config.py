"""Converts NeMo's model configuration to ModelConfig. Rejects every unsupported value that would change results.

Absent keys take the defaults of NeMo's constructors (3.0.0), which may differ from those of its recipes.
"""

import math
from typing import Any, NamedTuple

import torch

from penstock.errors import CheckpointError
from penstock.model.config import (
    DEFAULT_MAX_SYMBOLS,
    CtcConfig,
    FeatureConfig,
    ModelConfig,
    PromptConfig,
    TransducerConfig,
)
from penstock.model.languages import MAX_PROMPTS, read_languages
from penstock.model.limits import MAX_CONTEXT, MAX_FFT, MAX_LAYERS, MAX_MEL_BINS
from penstock.model.nemo.encoder import MIXED, read_encoder
from penstock.model.section import REQUIRED, Section

_CTC_MODEL, _HYBRID_MODEL = "EncDecCTCModelBPE", "EncDecHybridRNNTCTCBPEModel"
_CHARACTER_CTC_MODEL, _CHARACTER_HYBRID_MODEL = "EncDecCTCModel", "EncDecHybridRNNTCTCModel"
_CHARACTER_MODELS = ("EncDecRNNTModel", _CHARACTER_CTC_MODEL, _CHARACTER_HYBRID_MODEL)
"""Classes without a tokenizer, whose labels are listed characters."""
_PROMPT_MODELS = ("EncDecRNNTBPEModelWithPrompt", f"{_HYBRID_MODEL}WithPrompt")
_HYBRID_EOU_MODEL = "EncDecHybridRNNTCTCBPEEOUModel"
_EOU_MODELS = ("EncDecRNNTBPEEOUModel", _HYBRID_EOU_MODEL)
"""Trained in other ways to write end tokens; the networks are those of the same class without `EOU`."""
MODEL_CLASSES = (
    "EncDecRNNTBPEModel", _HYBRID_MODEL, _CTC_MODEL, *_CHARACTER_MODELS, *_PROMPT_MODELS, *_EOU_MODELS,
)  # fmt: skip
_OTHER_MODELS = {
    "NGramGPULanguageModel": "it is a language model; give the ARPA file that it was made from as --lm",
    "SortformerEncLabelModel": "it tells speakers apart; import it in its Transformers format for --speakers",
    "EncDecMultiTaskModel": "its decoder attends to the whole recording",
}
USE_BIAS, PREDNET, JOINTNET = "use_bias", "prednet", "jointnet"
_DEFAULT_PROMPTS = 128
_OTHER_PROMPTS = ("initialize_lang_id_prompt", "language_dictionary", "lang_id_prompt_dictionary")
"""Keys of prompts that NeMo builds in other ways."""
_LATER = 1
"""Stands for a size that the tensors have, until they are read."""


class MelBand(NamedTuple):
    """Frequency range of the filterbank, for checkpoints that do not store it."""

    lowest_hz: float
    highest_hz: float | None


class NemoConfig(NamedTuple):
    """The model configuration, and what else the importer needs."""

    model: ModelConfig
    class_name: str
    tokenizers: dict[str, str]
    """The member of each SentencePiece model by its language, "" where there is one; none of a character model."""
    mel_band: MelBand
    joint_has_dropout: bool
    unsettled: frozenset[str] = frozenset()
    """Keys of `use_bias`, `prednet` and `jointnet` that the file lacks: the tensors settle them."""
    vocabulary: tuple[object, ...] = ()
    """The labels, as the head lists them."""
    disabled_adapters: tuple[str, ...] = ()
    """Names of adapters whose tensors are left out."""


def read_nemo_config(document: dict[str, Any]) -> NemoConfig:
    """Converts the parsed model_config.yaml; raises CheckpointError with key, value and what is supported."""
    root = Section("", document)
    class_name = root.class_of("target", MODEL_CLASSES, _OTHER_MODELS)
    has_characters = class_name in _CHARACTER_MODELS
    tokenizers = {} if has_characters else _tokenizers(root.section("tokenizer"))
    disabled_adapters = _disabled_adapters(root.section("adapters", optional=True))
    encoder = read_encoder(root.section("encoder"))
    features, mel_band = _features(root.section("preprocessor"), encoder.is_offline)
    transducer, ctc, joint_has_dropout = None, None, False
    if class_name in (_CTC_MODEL, _CHARACTER_CTC_MODEL):
        ctc = _ctc_head(root.section("decoder"), encoder.d_model)
    else:
        transducer, joint_has_dropout = _transducer(root, encoder.d_model)
    if class_name.startswith((_HYBRID_MODEL, _HYBRID_EOU_MODEL, _CHARACTER_HYBRID_MODEL)):
        assert transducer is not None
        ctc = _aux_ctc_head(root.section("aux_ctc").section("decoder"), encoder.d_model, transducer.vocabulary_size)
    model = ModelConfig(features, encoder, transducer, ctc, _prompt(root, class_name, encoder.d_model))
    unsettled = _unsettled(root, transducer is not None)
    head = root.section("joint" if transducer else "decoder")
    listed = head.get("vocabulary")
    vocabulary = tuple(listed) if isinstance(listed, list) else ()
    if has_characters:
        _check_characters(head, vocabulary, model.vocabulary_size)
    if has_characters and transducer and ctc:
        aux = root.section("aux_ctc").section("decoder")
        aux.only("vocabulary", None, (None, [], list(vocabulary)), "joint and CTC head have the same labels")
    return NemoConfig(
        model, class_name, tokenizers, mel_band, joint_has_dropout, unsettled, vocabulary, disabled_adapters
    )


def _check_characters(head: Section, labels: tuple[object, ...], size: int) -> None:
    if len(labels) != size or not all(isinstance(label, str) and label for label in labels):
        head.reject("vocabulary", list(labels), f"a list of {size} characters, each a text")


def _disabled_adapters(section: Section) -> tuple[str, ...]:
    """Adapters that change nothing. An enabled one cannot be folded into a layer: it has an activation of its own."""
    adapters = {name: Section(section.path(name), value) for name, value in section.items() if name != "global_cfg"}
    if enabled := [name for name, adapter in adapters.items() if adapter.get("enabled", True) is not False]:
        section.reject(
            ", ".join(map(str, enabled)),
            adapters[enabled[0]].get("_target_"),
            "disabled adapters",
            "for the model without it, disable it in NeMo (model.set_enabled_adapters(enabled=False)) and save again; "
            "else fine-tune all weights",
        )
    return tuple(map(str, adapters))


def _unsettled(root: Section, has_transducer: bool) -> frozenset[str]:
    """Keys that older checkpoints leave out."""
    places = [("encoder", USE_BIAS), *([("decoder", PREDNET), ("joint", JOINTNET)] if has_transducer else [])]
    return frozenset(key for section, key in places if _is_empty(root.section(section), key))


def _prompt(root: Section, class_name: str, d_encoder: int) -> PromptConfig | None:
    """The language prompts, whose width is NeMo's 2 D until the tensors are read."""
    defaults = root.section("model_defaults", optional=True)
    for key in _OTHER_PROMPTS:
        defaults.only(key, None, (None, False), "language prompts of this kind are not supported")
    if class_name not in _PROMPT_MODELS:
        return None
    defaults.only("initialize_prompt_feature", False, (True,))
    _same(defaults, "enc_hidden", d_encoder, "encoder.d_model")
    prompts = defaults.integer("num_prompts", _DEFAULT_PROMPTS, maximum=MAX_PROMPTS)
    return read_languages(defaults, "prompt_dictionary", prompts, 2 * d_encoder)


def _tokenizers(section: Section) -> dict[str, str]:
    """Returns the members that are SentencePiece models: one, or one per language in the order of their labels."""
    kind = section.get("type")
    if not isinstance(kind, str) or kind.lower() not in ("bpe", "agg"):
        section.reject("type", kind, "'bpe' (one SentencePiece model) or 'agg' (one per language)")
    section.only("custom_tokenizer", None, (None,))
    if kind.lower() == "bpe":
        return {"": _member(section)}
    parts = section.section("langs")
    languages = {_language(name): Section(parts.path(name), each) for name, each in parts.items()}
    for each in languages.values():
        each.only("type", None, ("bpe",))
    if not languages:
        section.reject("langs", {}, "a tokenizer per language")
    return {name: _member(each) for name, each in languages.items()}


def _language(name: object) -> str:
    return "no" if name is False else str(name)  # as YAML reads it without quotes


def _member(section: Section) -> str:
    model_path = section.get("model_path", "tokenizer.model")
    if not isinstance(model_path, str):
        section.reject("model_path", model_path, "the name of a member of the archive")
    return model_path.removeprefix("nemo:")


def _features(section: Section, is_offline: bool) -> tuple[FeatureConfig, MelBand]:
    section.class_of("_target_", ("AudioToMelSpectrogramPreprocessor",))
    accepted = (None, "NA", "None", "none", "", *(["per_feature"] if is_offline else []))
    normalize = section.only("normalize", "per_feature", accepted, "" if is_offline else MIXED)
    section.only("log", True, (True,))
    section.only("log_zero_guard_type", "add", ("add",))
    section.only("exact_pad", False, (False,))
    section.only("use_torchaudio", False, (False, None))
    section.only("window", "hann", ("hann",))
    section.only("mel_norm", "slaney", ("slaney",))
    for key, only in (("mag_power", 2.0), ("frame_splicing", 1.0)):
        if section.number(key, only) != only:
            section.reject(key, section.get(key), f"{only:g}")
    section.ignore("dither", "pad_to", "pad_value", "rng", "nb_augmentation_prob", "nb_max_freq")
    section.ignore("stft_exact_pad", "stft_conv", "use_grads", "max_duration")
    sample_rate_hz = section.integer("sample_rate", 16000)
    window_samples = _samples(section, "window_size", 0.02, sample_rate_hz)
    features = FeatureConfig(
        sample_rate_hz=sample_rate_hz,
        window_samples=window_samples,
        hop_samples=_samples(section, "window_stride", 0.01, sample_rate_hz),
        fft_samples=_fft_samples(section, window_samples),
        mel_bins=section.integer("features", 64, maximum=MAX_MEL_BINS),
        preemphasis=0.0 if section.get("preemph", 0.97) is None else section.number("preemph", 0.97),
        log_guard=_log_guard(section),
        is_normalized=normalize == "per_feature",
    )
    high = section.get("highfreq")
    band = MelBand(section.number("lowfreq", 0), section.number("highfreq") if high else None)
    section.reject_unknown()
    return features, band


def _samples(section: Section, key: str, default_s: float, sample_rate_hz: int) -> int:
    """Returns a duration given in seconds (`key`) or in samples (`n_<key>`)."""
    samples_key = f"n_{key}"
    if section.get(key, default_s) and section.get(samples_key):
        section.reject(samples_key, section.get(samples_key), f"either this or {key}, not both")
    if section.get(samples_key):
        return section.integer(samples_key)
    samples = int(section.number(key, default_s) * sample_rate_hz)
    if samples < 1:
        section.reject(key, section.get(key), "at least one sample, in seconds")
    return samples


def _fft_samples(section: Section, window_samples: int) -> int:
    if not section.get("n_fft"):
        return 2 ** math.ceil(math.log2(window_samples))
    return section.integer("n_fft", maximum=MAX_FFT)


def _log_guard(section: Section) -> float:
    named = {"tiny": torch.finfo(torch.float32).tiny, "eps": torch.finfo(torch.float32).eps}
    value = section.get("log_zero_guard_value", 2**-24)
    return named[value] if value in named else section.number("log_zero_guard_value", 2**-24)


def _transducer(root: Section, d_encoder: int) -> tuple[TransducerConfig, bool]:
    decoder, joint = root.section("decoder"), root.section("joint")
    vocabulary_size, hidden, layers = _predictor(decoder)
    network = joint.section(JOINTNET, optional=True)
    is_empty = _is_empty(joint, JOINTNET)
    joint.class_of("_target_", ("RNNTJoint",))
    _same(joint, "num_classes", vocabulary_size, "decoder.vocab_size")
    _same(network, "encoder_hidden", d_encoder, "encoder.d_model")
    if not _is_empty(decoder, PREDNET):
        _same(network, "pred_hidden", hidden, "decoder.prednet.pred_hidden")
    durations = _durations(root, joint)
    joint.ignore("vocabulary", "log_softmax", "preserve_memory", "fuse_loss_wer", "fused_batch_size")
    joint.ignore("experimental_fuse_loss_wer", "masking_prob")
    activation = network.get("activation", "relu" if is_empty else None)
    if not isinstance(activation, str):
        network.reject("activation", activation, "relu, tanh or sigmoid")
    transducer = TransducerConfig(
        vocabulary_size=vocabulary_size,
        predictor_hidden=hidden,
        predictor_layers=layers,
        joint_hidden=network.integer("joint_hidden", _LATER if is_empty else REQUIRED),
        joint_activation=activation.lower(),
        tdt_durations=durations,
        max_symbols=_max_symbols(root),
    )
    has_dropout = bool(network.get("dropout", 0.0))
    joint.reject_unknown()
    network.reject_unknown()
    return transducer, has_dropout


def _predictor(decoder: Section) -> tuple[int, int, int]:
    """Returns vocabulary size, hidden width and the number of LSTM layers."""
    decoder.class_of("_target_", ("RNNTDecoder",))
    decoder.only("normalization_mode", None, (None,))
    decoder.only("blank_as_pad", True, (True,))
    decoder.ignore("random_state_sampling")
    network = decoder.section(PREDNET, optional=True)
    default = _LATER if _is_empty(decoder, PREDNET) else REQUIRED
    hidden = network.integer("pred_hidden", default)
    if network.get("rnn_hidden_size", -1) not in (-1, 0, None, hidden):
        network.reject("rnn_hidden_size", network.get("rnn_hidden_size"), f"-1 or pred_hidden ({hidden})")
    layers = network.integer("pred_rnn_layers", default, maximum=MAX_LAYERS)
    network.ignore("t_max", "dropout", "forget_gate_bias", "weights_init_scale", "hidden_hidden_bias_scale")
    vocabulary_size = decoder.integer("vocab_size")
    network.reject_unknown()
    decoder.reject_unknown()
    return vocabulary_size, hidden, layers


def _is_empty(section: Section, key: str) -> bool:
    """Whether the file has no values there, so that the importer takes them from the tensors."""
    return section.get(key) in (None, {})


def _same(section: Section, key: str, expected: int, where: str) -> None:
    """Checks an optional number that repeats another one (-1 is NeMo's placeholder)."""
    if section.get(key) not in (None, -1, expected):
        section.reject(key, section.get(key), f"{expected}, as {where}")


def _durations(root: Section, joint: Section) -> tuple[int, ...]:
    """Returns the encoder frames of each TDT duration, empty for RNN-T; all places in the file must agree."""
    decoding, loss = root.section("decoding", optional=True), root.section("loss", optional=True)
    if decoding.get("big_blank_durations") or decoding.get("model_type") == "multiblank":
        decoding.reject("big_blank_durations", decoding.get("big_blank_durations"), "nothing (RNN-T or TDT)")
    loss_name = loss.get("loss_name", "default")
    if isinstance(loss_name, str) and loss_name.startswith("multiblank"):
        loss.reject("loss_name", loss_name, "RNN-T or TDT losses")
    places = [(decoding, "durations"), (root.section("model_defaults", optional=True), "tdt_durations")]
    if loss_name == "tdt":
        places.append((loss.section("tdt_kwargs", optional=True), "durations"))
    given = [(section.path(key), section.get(key)) for section, key in places if section.get(key)]
    outputs = joint.integer("num_extra_outputs", 0, minimum=0)
    if not given:
        if outputs:
            joint.reject("num_extra_outputs", outputs, "0 without decoding.durations")
        return ()
    path, durations = given[0]
    if not isinstance(durations, list) or not all(type(d) is int and 0 <= d <= MAX_CONTEXT for d in durations):
        raise CheckpointError(f"{path}: {durations!r} is not supported; supported: a list of numbers of frames")
    for other_path, other in given[1:]:
        if other != durations:
            raise CheckpointError(f"{other_path}: {other!r} is not supported; supported: {durations}, as {path}")
    if outputs != len(durations):
        joint.reject("num_extra_outputs", outputs, f"{len(durations)}, one for each of {path} {durations}")
    return tuple(durations)


def _max_symbols(root: Section) -> int:
    """Returns the maximum labels per frame; the default if the file has no limit."""
    greedy = root.section("decoding", optional=True).section("greedy", optional=True)
    key = "max_symbols" if greedy.get("max_symbols") else "max_symbols_per_step"
    return greedy.integer(key, minimum=1) if greedy.get(key) else DEFAULT_MAX_SYMBOLS


def _aux_ctc_head(section: Section, d_encoder: int, vocabulary_size: int) -> CtcConfig:
    """The head beside a transducer, whose number of labels it has."""
    _convolution(section, d_encoder)
    if section.get("num_classes", -1) != 0:
        _same(section, "num_classes", vocabulary_size, "decoder.vocab_size")
    return CtcConfig(vocabulary_size)


def _ctc_head(section: Section, d_encoder: int) -> CtcConfig:
    """The only head of a CTC model; a placeholder in place of the number of labels stands for the listed ones."""
    _convolution(section, d_encoder)
    labels = section.get("vocabulary")
    has_number = section.get("num_classes", -1) not in (None, -1, 0)
    if not has_number and not (isinstance(labels, list) and labels):
        section.reject("num_classes", section.get("num_classes", -1), "the number of labels, or a vocabulary")
    return CtcConfig(section.integer("num_classes") if has_number else len(labels))


def _convolution(section: Section, d_encoder: int) -> None:
    """Checks that a CTC head is one convolution of width 1 over labels and blank."""
    section.class_of("_target_", ("ConvASRDecoder",))
    section.only("add_blank", True, (True,))
    _same(section, "feat_in", d_encoder, "encoder.d_model")
