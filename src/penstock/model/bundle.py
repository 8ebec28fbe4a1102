"""A bundle: the directory Penstock serves from. Independent of NeMo.

    config.json           ModelConfig, schema version, source, SHA-256 of these values and of the other two
    weights.safetensors   the tensors that `tensor_shapes` names, float32 or float16; those that config.json names in
                          "int8" with a scale per output and a factor per input
    tokenizer.model       SentencePiece, or JSON with characters or a SentencePiece model per language (vocabulary.py)

Reading executes nothing: JSON, safetensors and a SentencePiece protobuf are data.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import CheckpointError, SettingError
from penstock.model.bundle_files import (
    CONFIG_FILE,
    FORMAT,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Shapes,
    read_document,
    save_tensors,
    write_document,
)
from penstock.model.config import (
    AttentionContext,
    CtcConfig,
    EncoderConfig,
    FeatureConfig,
    ModelConfig,
    PromptConfig,
    TransducerConfig,
)
from penstock.model.int8_tensors import Int8Tensor, StoredBundle, int8_keys, int8_names, int8_parts
from penstock.model.vocabulary import is_json

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

FORMAT_VERSION, NEWER_FORMAT_VERSION, INT8_FORMAT_VERSION, LABELS_FORMAT_VERSION = 1, 2, 3, 4
"""The second is that of bundles with a factorized transducer, language prompts or end tokens and of offline models,
which earlier versions of Penstock would not understand, the third that of bundles in int8, the fourth that of models
with characters or several tokenizers."""
_FILES = (WEIGHTS_FILE, TOKENIZER_FILE)


def tensor_shapes(config: ModelConfig) -> Shapes:
    """Returns the shape of every tensor of a bundle, in the order in which a chunk uses them."""
    shapes = {
        "features.window": (config.features.window_samples,),
        "features.mel_filterbank": (config.features.mel_bins, config.features.fft_samples // 2 + 1),
    }
    shapes |= encoder_shapes(config.encoder)
    if config.prompt is not None:
        shapes |= _prompt_shapes(config.prompt, config.encoder.d_model)
    if config.transducer is not None:
        shapes |= _transducer_shapes(config.transducer, config.encoder.d_model)
    if config.ctc is not None:
        shapes |= _linear("ctc", config.encoder.d_model, config.ctc.vocabulary_size + 1, True)
    return shapes


def encoder_shapes(config: EncoderConfig) -> Shapes:
    """Returns the shapes of the encoder's tensors alone."""
    shapes = _subsampling_shapes(config)
    for layer in range(config.n_layers):
        shapes |= {f"encoder.layers.{layer}.{name}": s for name, s in _layer_shapes(config).items()}
    return shapes


def _linear(name: str, d_in: int, d_out: int, bias: bool) -> Shapes:
    return {f"{name}.weight": (d_out, d_in)} | ({f"{name}.bias": (d_out,)} if bias else {})


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _subsampling_shapes(encoder: EncoderConfig) -> Shapes:
    channels = encoder.subsampling_channels
    shapes: Shapes = {
        "encoder.subsampling.first.weight": (channels, 1, 3, 3),
        "encoder.subsampling.first.bias": (channels,),
    }
    for i in range(encoder.subsampling_layers - 1):
        shapes |= {
            f"encoder.subsampling.depthwise.{i}.weight": (channels, 1, 3, 3),
            f"encoder.subsampling.depthwise.{i}.bias": (channels,),
        }
        shapes |= _linear(f"encoder.subsampling.pointwise.{i}", channels, channels, True)
    return shapes | _linear(
        "encoder.subsampling.out", channels * encoder.subsampled_mel_bins[-1], encoder.d_model, True
    )


def _layer_shapes(encoder: EncoderConfig) -> Shapes:
    d, ff, bias = encoder.d_model, encoder.d_feed_forward, encoder.use_bias
    shapes: Shapes = {}
    for name in ("feed_forward1", "feed_forward2"):
        shapes |= _norm(f"{name}.norm", d)
        shapes |= _linear(f"{name}.up", d, ff, bias) | _linear(f"{name}.down", ff, d, bias)
    shapes |= _norm("attention.norm", d)
    for name in ("query", "key", "value", "out"):
        shapes |= _linear(f"attention.{name}", d, d, bias)
    shapes |= _linear("attention.position", d, d, False)
    shapes |= {f"attention.position_bias_{kind}": (encoder.n_heads, encoder.d_head) for kind in ("u", "v")}
    shapes |= _norm("convolution.norm", d)
    shapes |= _linear("convolution.pointwise1", d, 2 * d, bias) | _linear("convolution.pointwise2", d, d, bias)
    shapes |= {"convolution.depthwise.weight": (d, encoder.conv_kernel_size)}
    if bias or not encoder.has_conv_layer_norm:  # a folded batch norm always leaves a bias
        shapes |= {"convolution.depthwise.bias": (d,)}
    if encoder.has_conv_layer_norm:
        shapes |= _norm("convolution.depthwise_norm", d)
    return shapes | _norm("norm_out", d)


def _prompt_shapes(prompt: PromptConfig, d_encoder: int) -> Shapes:
    shapes = {"prompt.in.weight": (prompt.hidden, d_encoder), "prompt.table": (prompt.prompts, prompt.hidden)}
    return shapes | _linear("prompt.out", prompt.hidden, d_encoder, True)


def _transducer_shapes(transducer: TransducerConfig, d_encoder: int) -> Shapes:
    hidden, joint, labels = transducer.predictor_hidden, transducer.joint_hidden, transducer.vocabulary_size
    shapes: Shapes = {"predictor.embedding.weight": (labels + 1, hidden)}
    for layer in range(transducer.predictor_layers):
        shapes |= {
            f"predictor.lstm.{layer}.input_weight": (4 * hidden, hidden),
            f"predictor.lstm.{layer}.hidden_weight": (4 * hidden, hidden),
            f"predictor.lstm.{layer}.input_bias": (4 * hidden,),
            f"predictor.lstm.{layer}.hidden_bias": (4 * hidden,),
        }
    if transducer.is_factorized:
        shapes |= _linear("predictor.output", hidden, labels, True)
        shapes |= {"blank.embedding.weight": (labels + 1, joint)}
        shapes |= _linear("blank.encoder", d_encoder, joint, True) | _linear("blank.output", joint, 1, True)
        return shapes | _linear("acoustic", d_encoder, labels, True)
    shapes |= _linear("joint.encoder", d_encoder, joint, True) | _linear("joint.predictor", hidden, joint, True)
    return shapes | _linear("joint.output", joint, transducer.joint_outputs, True)


class Checkpoint(StoredBundle):
    """A recognizer's bundle opened for reading."""

    def __init__(self, directory: str | Path, is_verified: bool = False):
        directory = Path(directory)
        document = read_document(directory, FORMAT, range(FORMAT_VERSION, LABELS_FORMAT_VERSION + 1))
        self.config = _config_from_document(document, directory / CONFIG_FILE)
        int8 = int8_names(document, encoder_shapes(self.config.encoder), "encoder", directory / CONFIG_FILE)
        super().__init__(directory, document, _FILES, tensor_shapes(self.config), int8, is_verified)

    @property
    def tokenizer_path(self) -> Path:
        """The labels, as `Tokenizer` reads them."""
        return self.directory / TOKENIZER_FILE

    def choose_precision(self, precision: str, device: str) -> str:
        """The precision, or int8 for a bundle stored so; SettingError for another one with it and for a GPU."""
        if not self.int8:
            return precision
        if precision not in ("auto", "int8"):
            raise SettingError(
                f"{self.directory}: is stored in int8, and precision is {precision!r}; accepted: auto, int8"
            )
        if device.startswith("cuda"):
            raise SettingError(f"{self.directory}: is stored in int8, which needs the CPU, not {device}")
        return "int8"


def write_checkpoint(
    directory: str | Path,
    config: ModelConfig,
    tensors: "dict[str, torch.Tensor]",
    tokenizer_model: bytes,
    source: dict[str, str],
    int8: dict[str, Int8Tensor] | None = None,
) -> Checkpoint:
    """Writes a bundle into `directory`, created if missing, and opens it; existing files are replaced.

    int8: what is stored in place of some tensors [out, in].
    Raises CheckpointError with the name of a tensor that does not match `tensor_shapes(config)`.
    """
    directory = Path(directory)
    save_tensors(directory / WEIGHTS_FILE, tensors, tensor_shapes(config), int8_parts(int8))
    (directory / TOKENIZER_FILE).write_bytes(tokenizer_model)
    document = {
        "format": FORMAT,
        "version": LABELS_FORMAT_VERSION if is_json(tokenizer_model) else _version(config, bool(int8)),
        **int8_keys(int8),
        "source": source,
        "model": _model_document(config),
    }
    write_document(directory, document, _FILES)
    return Checkpoint(directory)


def _version(config: ModelConfig, is_int8: bool) -> int:
    is_factorized = config.transducer is not None and config.transducer.is_factorized
    is_newer = is_factorized or config.prompt is not None or config.encoder.is_offline or bool(config.end_tokens)
    return INT8_FORMAT_VERSION if is_int8 else NEWER_FORMAT_VERSION if is_newer else FORMAT_VERSION


def _model_document(config: ModelConfig) -> dict[str, Any]:
    """The configuration as JSON values; a model has no keys of what it lacks."""
    model = dataclasses.asdict(config)
    if config.prompt is None:
        del model["prompt"]
    if not config.end_tokens:
        del model["end_tokens"]
    if not config.encoder.is_offline:
        del model["features"]["is_normalized"]
    if config.encoder.attention_band is None:
        del model["encoder"]["attention_band"]
    if config.encoder.live_menu is None:
        del model["encoder"]["live_menu"]
    if config.transducer is not None and not config.transducer.is_factorized:
        for key in ("kind", "ilm_beam", "ilm_greedy"):
            del model["transducer"][key]
    return model


def _config_from_document(document: dict[str, Any], path: Path) -> ModelConfig:
    model: Any = document.get("model")
    try:
        encoder = dict(model["encoder"])
        encoder["contexts"] = tuple(AttentionContext(*pair) for pair in encoder["contexts"])
        return ModelConfig(
            features=FeatureConfig(**model["features"]),
            encoder=EncoderConfig(**encoder),
            transducer=None if model["transducer"] is None else TransducerConfig(**model["transducer"]),
            ctc=_ctc_from_model(model),
            prompt=PromptConfig(**model["prompt"]) if "prompt" in model else None,
            end_tokens=tuple(model.get("end_tokens", ())),
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f'{path}: "model" does not fit the schema: {error}') from error


def _ctc_from_model(model: dict[str, Any]) -> CtcConfig | None:
    """The CTC head; bundles of earlier versions name only whether the transducer is accompanied by one."""
    if "has_ctc_head" in model:
        return CtcConfig(model["transducer"]["vocabulary_size"]) if model["has_ctc_head"] else None
    return None if model["ctc"] is None else CtcConfig(**model["ctc"])
