"""Random models of Transformers' own classes, what they compute on a whole signal, and their imported bundles."""

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from tokenizers import AddedToken
from transformers import (
    Nemotron3_5AsrConfig,
    Nemotron3_5AsrForRNNT,
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
)
from transformers.utils import sentencepiece_model_pb2_new

from benchmarks.nemo_specs import SAMPLE_RATE_HZ, float_signals
from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.transformers.importer import import_transformers
from penstock.model.transformers.weights import source_of
from tests.helpers.nemo_files import nemo_members, tokenizer_member

_MEL_MEAN, _MEL_DEVIATION = -6.0, 4.0  # about what speech gives
_BLANK_RATE = 0.7
_workspace = tempfile.TemporaryDirectory(prefix="penstock-oracle-")


class TransformersSpec(NamedTuple):
    """Differences between the models; contexts: right ones, the default first."""

    name: str
    seed: int
    rights: tuple[int, ...]
    encoder: dict[str, object]
    decoder: dict[str, object]
    mel_bins: int = 128
    languages: dict[str, int] | None = None
    """Prompts by language; None for a model without."""


SPECS = (
    TransformersSpec(
        "as_published", 0, (13, 6, 1, 0),
        {"sliding_window": 71, "attention_bias": False, "convolution_bias": False, "scale_input": False},
        {"decoder_hidden_size": 20, "num_decoder_layers": 2},
    ),
    TransformersSpec(
        "biases", 4, (2, 0, 5),
        {"sliding_window": 7, "attention_bias": True, "convolution_bias": True, "scale_input": True,
         "subsampling_factor": 4, "conv_kernel_size": 6},
        {"decoder_hidden_size": 12, "num_decoder_layers": 1, "hidden_act": "tanh", "max_symbols_per_step": 3},
        mel_bins=80,
    ),
)  # fmt: skip
WITH_PROMPTS = TransformersSpec(
    "with_prompts", 5, (3, 0, 6, 13),
    {"sliding_window": 57, "attention_bias": False, "convolution_bias": False, "scale_input": False},
    {"decoder_hidden_size": 20, "num_decoder_layers": 2, "num_prompts": 9, "prompt_intermediate_size": 30,
     "default_prompt_id": 8},
    languages={"en-US": 0, "en": 0, "de-DE": 4, "no": 7, "auto": 8},
)  # fmt: skip
"""Spec as nemotron-3.5-asr-streaming; its prompts' width is not twice that of the encoder."""


def make_processor(
    sentencepiece_model: bytes,
    mel_bins: int,
    rights: Sequence[int],
    prompts: Mapping[str, int] | None = None,
    prompt_count: int = 0,
) -> NemotronAsrStreamingProcessor:
    """Front end and tokenizer as Transformers' script for .nemo files makes them.

    rights: contexts, the default first; prompts: of a model with language prompts, of which there are `prompt_count`.
    """
    # The module by its name, because the package has a function of the same name. By itself it takes the message
    # module of sentencepiece, which needs a newer protobuf.
    converters = importlib.import_module("transformers.convert_slow_tokenizer")
    converters.import_protobuf = lambda *_: sentencepiece_model_pb2_new
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.model"
        path.write_bytes(sentencepiece_model)
        converted = converters.ParakeetConverter(str(path)).converted()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=converted, clean_up_tokenization_spaces=False)
    special = {text: AddedToken(text, normalized=False, special=True) for text in ("<unk>", "<pad>", "<blank>")}
    if tokenizer.convert_tokens_to_ids("<pad>") is None:
        tokenizer.add_tokens([special["<pad>"]])
    tokenizer.add_tokens([special["<blank>"]])
    tokenizer.add_special_tokens({"pad_token": special["<pad>"], "unk_token": special["<unk>"]})
    contexts = {"supported_num_lookahead_tokens": list(rights), "default_num_lookahead_tokens": rights[0]}
    front_end = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=mel_bins)
    if prompts is None:
        return transformers.NemotronAsrStreamingProcessor(front_end, tokenizer, **contexts)
    return transformers.Nemotron3_5AsrProcessor(
        front_end, tokenizer, **contexts, prompt_dictionary=prompts, num_prompts=prompt_count
    )


@dataclass(frozen=True)
class OnBothSides:
    """One model of Transformers, and its bundle."""

    model: transformers.PreTrainedModel
    processor: transformers.ProcessorMixin
    directory: Path
    checkpoint: Checkpoint
    signals: tuple[np.ndarray, ...]

    def features(self, samples: np.ndarray) -> dict[str, torch.Tensor]:
        """Log-mel [1, N, F] with the mask of its valid frames [1, N]."""
        return self.processor.feature_extractor(samples, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")

    def mel(self, samples: np.ndarray) -> torch.Tensor:
        """The valid frames of the log-mel [N, F]."""
        features = self.features(samples)
        return features["input_features"][features["attention_mask"].bool()]


class TransformersModel(OnBothSides):
    """A streaming model."""

    @property
    def contexts(self) -> tuple[AttentionContext, ...]:
        """All contexts of the checkpoint."""
        return self.checkpoint.config.encoder.contexts

    def encode_mel(self, mel: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        """Encoder output [T, D] for log-mel [N, F], offline."""
        with torch.no_grad():
            output = self.model.encoder(
                input_features=mel[None],
                attention_mask=torch.ones(1, len(mel), dtype=torch.bool),
                num_lookahead_tokens=context.right,
            )
        return output.last_hidden_state[0][output.attention_mask[0].bool()]

    def decode(
        self, samples: np.ndarray, context: AttentionContext, prompt: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Greedy labels and their encoder frames, offline. prompt: of a model with language prompts."""
        more = {} if prompt is None else {"prompt_ids": torch.tensor([prompt])}
        features = self.features(samples)
        limit = (self.model.config.max_symbols_per_step + 1) * features["input_features"].shape[1]  # never reached
        with torch.no_grad():
            output = self.model.generate(**features, num_lookahead_tokens=context.right, max_new_tokens=limit, **more)
        labels, durations = output.sequences[0], output.durations[0]
        is_label = (labels != self.model.config.blank_token_id).tolist()
        frames = (durations.cumsum(0) - durations).tolist()
        kept = [index for index, keep in enumerate(is_label) if keep]
        return [int(labels[index]) for index in kept], [frames[index] for index in kept]


@cache
def transformers_model(name: str) -> TransformersModel:
    """The model called `name`, built, saved by Transformers and imported once a process."""
    spec = next(spec for spec in (*SPECS, WITH_PROMPTS) if spec.name == name)
    signals = tuple(float_signals().values())
    model, processor = _random_model(spec), processor_of(spec)
    _set_blank_rate(model, processor, signals)
    directory = Path(_workspace.name) / name
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    checkpoint = import_transformers(directory, Path(_workspace.name) / f"{name}-bundle")
    return TransformersModel(model, processor, directory, checkpoint, signals)


def processor_of(spec: TransformersSpec, tokenizer: bytes | None = None) -> NemotronAsrStreamingProcessor:
    """The processor, with the golden tokenizer or another one."""
    tokenizer, prompts = tokenizer or nemo_members()[tokenizer_member()], spec.decoder.get("num_prompts", 0)
    return make_processor(tokenizer, spec.mel_bins, spec.rights, spec.languages, prompts)


def _random_model(spec: TransformersSpec) -> NemotronAsrStreamingForRNNT:
    labels = 48
    sizes = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48,
        "conv_kernel_size": 9, "subsampling_conv_channels": 8, "num_mel_bins": spec.mel_bins,
        "default_num_lookahead_tokens": spec.rights[0],
    }  # fmt: skip
    config_class, model_class = NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT
    if spec.languages is not None:
        config_class, model_class = Nemotron3_5AsrConfig, Nemotron3_5AsrForRNNT
    config = config_class(
        vocab_size=labels + 1, blank_token_id=labels, encoder_config=sizes | spec.encoder, **spec.decoder
    )
    model = model_class(config).eval()
    model.generation_config.decoder_start_token_id = labels
    generator = torch.Generator().manual_seed(spec.seed)
    for name, parameter in model.named_parameters():
        parameter.data = random_tensor(name, parameter.shape, generator)
    first = model.encoder.subsampling.conv_in
    first.weight.data /= _MEL_DEVIATION
    first.bias.data -= first.weight.data.sum((1, 2, 3)) * _MEL_MEAN
    return model


def random_tensor(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1 and "norm" in name and name.endswith("weight"):
        return 1.0 + 0.2 * noise
    if len(shape) == 1 or name.endswith(("bias_u", "bias_v")):
        return 0.2 * noise
    gain = 3.0 if name.startswith(("decoder.", "joint.")) else 1.4
    return gain * noise / noise[0].numel() ** 0.5


def _set_blank_rate(
    model: NemotronAsrStreamingForRNNT, processor: NemotronAsrStreamingProcessor, signals: tuple[np.ndarray, ...]
) -> None:
    """Chooses the blank's bias such that about `_BLANK_RATE` of the frames of all languages are blank at the start."""
    blank = model.config.blank_token_id
    features = processor.feature_extractor(signals[0], sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
    right = processor.default_num_lookahead_tokens
    count = getattr(model.config, "num_prompts", 0)
    prompts: list[dict[str, torch.Tensor]] = [{"prompt_ids": torch.tensor([index])} for index in range(count)] or [{}]
    with torch.no_grad():
        outputs = [model.get_audio_features(**features, num_lookahead_tokens=right, **prompt) for prompt in prompts]
        frames = torch.cat([output.pooler_output[0] for output in outputs])
        prediction = model.decoder(torch.tensor([[blank]]))[0]
        logits = model.joint(decoder_hidden_states=prediction, encoder_hidden_states=frames)
    leads = logits[:, :blank].amax(dim=1) - logits[:, blank]
    model.joint.head.bias.data[blank] += between_leads(leads, _BLANK_RATE)


def between_leads(leads: torch.Tensor, rate: float) -> torch.Tensor:
    """The middle of the widest of three gaps at the quantile of leads of any shape.

    The quantile itself may be one of the leads: with it as the blank's bias that frame would be a tie, which each CPU
    breaks as it rounds.
    """
    ordered = leads.flatten().sort().values
    first = int(rate * (len(ordered) - 1)) - 1
    gaps = ordered[first : first + 4].diff()
    widest = int(gaps.argmax())
    return ordered[first + widest] + gaps[widest] / 2


def export_transformers(checkpoint: Checkpoint, directory: Path) -> None:
    """Saves model and processor by Transformers' own classes; importing them gives the same tensors.

    CheckpointError for a bundle that the format cannot express.
    """
    config = checkpoint.config
    encoder, transducer = config.encoder, config.transducer
    if transducer is None or transducer.is_tdt or transducer.is_factorized:
        raise CheckpointError(f"{checkpoint.directory}: is {config.head_name}; accepted: RNN-T")
    if not encoder.has_conv_layer_norm or transducer.joint_hidden != transducer.predictor_hidden:
        raise CheckpointError(f"{checkpoint.directory}: has a batch norm, or widths of joint and predictor that differ")
    rights = tuple(context.right for context in encoder.contexts)
    model = NemotronAsrStreamingForRNNT(
        NemotronAsrStreamingConfig(
            vocab_size=transducer.vocabulary_size + 1,
            blank_token_id=transducer.vocabulary_size,
            decoder_hidden_size=transducer.predictor_hidden,
            num_decoder_layers=transducer.predictor_layers,
            hidden_act=transducer.joint_activation,
            max_symbols_per_step=transducer.max_symbols,
            encoder_config={
                "attention_bias": encoder.use_bias,
                "conv_kernel_size": encoder.conv_kernel_size,
                "convolution_bias": encoder.use_bias,
                "default_num_lookahead_tokens": rights[0],
                "hidden_size": encoder.d_model,
                "intermediate_size": encoder.d_feed_forward,
                "num_attention_heads": encoder.n_heads,
                "num_hidden_layers": encoder.n_layers,
                "num_key_value_heads": encoder.n_heads,
                "num_mel_bins": encoder.mel_bins,
                "scale_input": encoder.xscaling,
                "sliding_window": encoder.contexts[0].left + 1,
                "subsampling_conv_channels": encoder.subsampling_channels,
                "subsampling_factor": encoder.subsampling_factor,
            },
        )
    )
    state = {}
    for name, tensor in checkpoint.tensors("encoder.", "predictor.", "joint.").items():
        source = source_of(name, tuple(tensor.shape), is_offline=False)
        state[source.name] = tensor.reshape(source.shape)
    model.load_state_dict(state)
    model.generation_config.decoder_start_token_id = transducer.vocabulary_size
    processor = make_processor(checkpoint.tokenizer_path.read_bytes(), encoder.mel_bins, rights)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
