"""Converts the configuration of a Transformers model to ModelConfig; a value that would change results is an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.errors import CheckpointError
from penstock.model.config import (
    AttentionContext,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    ModelConfig,
    PromptConfig,
    TransducerConfig,
)
from penstock.model.languages import MAX_PROMPTS, read_languages
from penstock.model.limits import MAX_CONTEXT, MAX_FFT, MAX_LAYERS, MAX_MEL_BINS
from penstock.model.section import Section
from penstock.model.transformers.files import (
    CONFIG,
    CTC_MODEL_TYPE,
    MODEL_TYPES,
    OFFLINE_MODEL_TYPES,
    PREPROCESSOR,
    PROCESSOR,
    PROMPT_MODEL_TYPE,
    TDT_MODEL_TYPE,
    read_json,
)

LOG_GUARD = 2**-24
"""A constant of Transformers' feature extractors."""
WITHOUT_EFFECT = (
    "architectures", "dtype", "torch_dtype", "initializer_range", "is_encoder_decoder", "pad_token_id", "bos_token_id",
    "eos_token_id", "decoder_start_token_id", "transformers_version", "id2label", "label2id", "return_dict",
    "use_cache", "chunk_size_feed_forward", "problem_type", "_name_or_path",
)  # fmt: skip
"""Keys that every configuration in Transformers may have."""


class TransformersConfig(NamedTuple):
    """The model configuration, and Transformers' name of the model's class."""

    model: ModelConfig
    class_name: str


def read_transformers_config(directory: Path) -> TransformersConfig:
    """Converts config.json and processor_config.json in `directory`.

    The front end may be in preprocessor_config.json, where older releases write it. Raises CheckpointError with file,
    key, value and what is supported.
    """
    with errors_of(CONFIG):
        root = Section("", read_json(directory / CONFIG))
        class_name = _model_class(root)
        prompts = _prompts(root)
    is_offline = root.get("model_type") in OFFLINE_MODEL_TYPES
    with errors_of(PROCESSOR):
        has_none = is_offline and not (directory / PROCESSOR).is_file()  # as older releases of Transformers write it
        processor = Section("", {} if has_none else read_json(directory / PROCESSOR))
        rights = None if is_offline else _rights(processor)
        prompt = None if prompts is None else _languages(processor, *prompts)
        if processor.get("feature_extractor") is not None:
            features = read_features(processor.section("feature_extractor"), is_offline)
        processor.ignore("processor_class", "blank_token", *(["decoder_type"] if is_offline else []))
        processor.reject_unknown()
    if processor.get("feature_extractor") is None:
        with errors_of(PREPROCESSOR):
            features = read_features(Section("", read_json(directory / PREPROCESSOR)), is_offline)
    with errors_of(CONFIG):
        encoder = _encoder(root.section("encoder_config"), rights, features.mel_bins)
        transducer, ctc = _heads(root)
        root.reject_unknown()
        return TransformersConfig(ModelConfig(features, encoder, transducer, ctc, prompt), class_name)


@contextmanager
def errors_of(file: str) -> Iterator[None]:
    """Puts the name of the file in front of an error that has none."""
    try:
        yield
    except CheckpointError as error:
        named = error.message.startswith(file)
        raise CheckpointError(error.message if named else f"{file}: {error.message}") from error


def _model_class(root: Section) -> str:
    kind = root.get("model_type")
    if kind not in MODEL_TYPES:
        root.reject("model_type", kind, " or ".join(MODEL_TYPES))
    names = root.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else kind


def _prompts(root: Section) -> tuple[int, int] | None:
    """The number of prompts and the width between their layers; None for a model without prompts."""
    if root.get("model_type") != PROMPT_MODEL_TYPE:
        return None
    prompts = root.integer("num_prompts", maximum=MAX_PROMPTS)
    root.integer("default_prompt_id", 0, minimum=0, maximum=prompts - 1)
    return prompts, root.integer("prompt_intermediate_size")


def _languages(processor: Section, prompts: int, hidden: int) -> PromptConfig:
    processor.only("num_prompts", prompts, (prompts,), f"it must equal num_prompts in {CONFIG}")
    return read_languages(processor, "prompt_dictionary", prompts, hidden)


def _rights(processor: Section) -> tuple[int, ...]:
    """Right contexts in encoder frames, the default first."""
    key, default_key = "supported_num_lookahead_tokens", "default_num_lookahead_tokens"
    values = processor.get(key)
    is_list = isinstance(values, list) and len(values) > 0
    if not is_list or not all(type(value) is int and 0 <= value <= MAX_CONTEXT for value in values):
        processor.reject(key, values, f"a list of right contexts from 0 to {MAX_CONTEXT} encoder frames")
    default = processor.get(default_key, values[0])
    if type(default) is not int or default not in values:
        processor.reject(default_key, default, f"one of {values}")
    return (default, *(value for value in values if value != default))


def read_features(section: Section, is_offline: bool) -> FeatureConfig:
    """Converts a feature extractor."""
    name = "ParakeetFeatureExtractor" if is_offline else "NemotronAsrStreamingFeatureExtractor"
    section.only("feature_extractor_type", None, (name,))
    section.only("mel_filters_dtype", "float32", ("float32",))
    section.ignore("padding_side", "padding_value", "return_attention_mask", "processor_class")
    features = FeatureConfig(
        sample_rate_hz=section.integer("sampling_rate"),
        window_samples=section.integer("win_length"),
        hop_samples=section.integer("hop_length"),
        fft_samples=section.integer("n_fft", maximum=MAX_FFT),
        mel_bins=section.integer("feature_size", maximum=MAX_MEL_BINS),
        preemphasis=section.number("preemphasis"),
        log_guard=LOG_GUARD,
        is_normalized=is_offline,
    )
    section.reject_unknown()
    return features


def _encoder(section: Section, rights: tuple[int, ...] | None, mel_bins: int) -> EncoderConfig:
    """rights: None for an offline model."""
    section.only("model_type", None, ("parakeet_encoder" if rights is None else "nemotron_asr_streaming_encoder",))
    section.only("hidden_act", None, ("silu",))
    section.only("subsampling_conv_kernel_size", None, (3,))
    section.only("subsampling_conv_stride", None, (2,))
    use_bias = section.flag("attention_bias")
    section.only("convolution_bias", None, (use_bias,), "it must equal attention_bias")
    heads = section.integer("num_attention_heads")
    d_model = section.integer("hidden_size")
    if d_model % heads:
        section.reject("num_attention_heads", heads, f"a divisor of hidden_size {d_model}")
    section.only("num_key_value_heads", heads, (heads,))
    section.only("head_dim", d_model // heads, (d_model // heads,))
    section.only("num_mel_bins", None, (mel_bins,), f"it must equal feature_size in {PROCESSOR}")
    section.ignore("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout")
    section.ignore("max_position_embeddings", *WITHOUT_EFFECT)
    encoder = EncoderConfig(
        mel_bins=mel_bins,
        n_layers=section.integer("num_hidden_layers", maximum=MAX_LAYERS),
        d_model=d_model,
        n_heads=heads,
        d_feed_forward=section.integer("intermediate_size"),
        conv_kernel_size=section.integer("conv_kernel_size"),
        has_conv_layer_norm=rights is not None,
        use_bias=use_bias,
        xscaling=section.flag("scale_input"),
        subsampling_factor=section.integer("subsampling_factor"),
        subsampling_channels=section.integer("subsampling_conv_channels"),
        contexts=() if rights is None else _contexts(section, rights),
    )
    section.reject_unknown()
    return encoder


def _contexts(section: Section, rights: tuple[int, ...]) -> tuple[AttentionContext, ...]:
    _check_repeated_contexts(section, rights)
    left = section.integer("sliding_window", minimum=2, maximum=MAX_CONTEXT + 1) - 1
    if any(left % (right + 1) for right in rights):
        section.reject("sliding_window", left + 1, f"one more than a multiple of right + 1 for every right of {rights}")
    return tuple(AttentionContext(left, right) for right in rights)


def _check_repeated_contexts(section: Section, rights: tuple[int, ...]) -> None:
    """The contexts are the processor's; what the encoder repeats of them must agree."""
    default = section.get("default_num_lookahead_tokens", rights[0])
    if default not in rights:
        section.reject("default_num_lookahead_tokens", default, f"one of {list(rights)}, as {PROCESSOR}")
    repeated = section.get("supported_num_lookahead_tokens", list(rights))
    if not isinstance(repeated, list) or set(map(str, repeated)) != set(map(str, rights)):
        section.reject("supported_num_lookahead_tokens", repeated, f"{list(rights)}, as {PROCESSOR}")


def _heads(root: Section) -> tuple[TransducerConfig | None, CtcConfig | None]:
    root.ignore(*WITHOUT_EFFECT)
    vocabulary_size = root.integer("vocab_size", minimum=2) - 1
    is_ctc = root.get("model_type") == CTC_MODEL_TYPE
    key = "pad_token_id" if is_ctc else "blank_token_id"
    blank = root.integer(key, minimum=0)
    if blank != vocabulary_size:
        root.reject(key, blank, f"{vocabulary_size}, the last of vocab_size")
    if is_ctc:
        root.ignore("ctc_loss_reduction", "ctc_zero_infinity")
        return None, CtcConfig(vocabulary_size)
    hidden = root.integer("decoder_hidden_size")
    transducer = TransducerConfig(
        vocabulary_size=vocabulary_size,
        predictor_hidden=hidden,
        predictor_layers=root.integer("num_decoder_layers", maximum=MAX_LAYERS),
        joint_hidden=hidden,
        joint_activation=root.only("hidden_act", None, ("relu", "tanh", "sigmoid")),
        tdt_durations=_durations(root) if root.get("model_type") == TDT_MODEL_TYPE else (),
        max_symbols=root.integer("max_symbols_per_step"),
    )
    return transducer, None


def _durations(root: Section) -> tuple[int, ...]:
    durations = root.get("durations")
    is_list = isinstance(durations, list) and len(durations) > 0
    if not is_list or not all(type(frames) is int and 0 <= frames <= MAX_CONTEXT for frames in durations):
        root.reject("durations", durations, f"a list of encoder frames from 0 to {MAX_CONTEXT}")
    return tuple(durations)
