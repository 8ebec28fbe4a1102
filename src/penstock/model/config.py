"""Model configuration as frozen dataclasses, validated when built."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import SettingError
from penstock.model.limits import MAX_CONTEXT, MAX_LAYERS, require, require_flags, require_integers, require_numbers

DEFAULT_MAX_SYMBOLS = 10
DEFAULT_CHUNK_MEL_FRAMES = 56
"""560 ms, the default of `penstock serve` where the checkpoint has it."""
NO_CONTEXTS = "an offline model has no contexts; accepted: none"


class AttentionContext(NamedTuple):
    """Attention context of every encoder layer in encoder frames: `left` frames back, chunks of `right + 1` frames."""

    left: int
    right: int

    @property
    def chunk_encoder_frames(self) -> int:
        """Encoder frames of one chunk."""
        return self.right + 1

    def __str__(self) -> str:
        return f"[{self.left},{self.right}]"


def parse_context(text: str) -> AttentionContext:
    """Parses "70,6"."""
    try:
        left, right = (int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        raise SettingError(f"context {text!r}: expected LEFT,RIGHT in encoder frames, for example 70,6") from None
    return AttentionContext(left, right)


_LANGUAGE = re.compile(r"[\w-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class FeatureConfig:
    """Log-mel front end: centered frames, pre-emphasis, power spectrum, log(mel + log_guard)."""

    sample_rate_hz: int
    window_samples: int
    hop_samples: int
    fft_samples: int
    mel_bins: int
    preemphasis: float
    log_guard: float
    is_normalized: bool = False
    """Each mel bin of a window has mean 0 and deviation 1 (`per_feature`), in offline models only."""

    def __post_init__(self) -> None:
        require_integers(self, "sample_rate_hz", "window_samples", "hop_samples", "fft_samples", "mel_bins")
        require_numbers(self, "preemphasis", "log_guard")
        require_flags(self, "is_normalized")
        # With a longer hop all samples of a frame would arrive before the offline front end counts the frame.
        require(2 * self.hop_samples <= self.window_samples, "window_stride", self.hop_samples, "half of window_size")
        require(self.window_samples % 2 == 0, "window_size", self.window_samples, "an even number of samples")
        require(self.window_samples <= self.fft_samples, "n_fft", self.fft_samples, "at least the window size")
        require(self.preemphasis < 1, "preemph", self.preemphasis, "0 <= preemph < 1")
        require(self.log_guard > 0, "log_zero_guard_value", self.log_guard, "a positive number")

    @property
    def hop_ms(self) -> float:
        """Milliseconds between two mel frames."""
        return 1000.0 * self.hop_samples / self.sample_rate_hz


class LiveMenu(NamedTuple):
    """Windows of live streams with which an offline model was trained: any of each, in encoder frames."""

    lefts: tuple[int, ...]
    chunks: tuple[int, ...]
    rights: tuple[int, ...]


@dataclass(frozen=True)
class EncoderConfig:
    """FastConformer with dw_striding subsampling: cache-aware and causal, or offline, with centered convolutions."""

    mel_bins: int
    n_layers: int
    d_model: int
    n_heads: int
    d_feed_forward: int
    conv_kernel_size: int
    has_conv_layer_norm: bool
    """False if a batch norm was folded into the depthwise convolution."""
    use_bias: bool
    xscaling: bool
    subsampling_factor: int
    subsampling_channels: int
    contexts: tuple[AttentionContext, ...]
    """The contexts the checkpoint was trained with; empty for an offline model, which sees a whole window."""
    attention_band: tuple[int, int] | None = None
    """Encoder frames before and after each that an offline model with local attention attends to."""
    live_menu: LiveMenu | None = None
    """Live windows of an offline model with attention by chunks (NeMo's `chunked_limited_with_rc`); else None."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "contexts", tuple(AttentionContext(*pair) for pair in self.contexts))
        require_integers(self, "mel_bins", "d_model", "n_heads", "d_feed_forward", "subsampling_channels")
        require_integers(self, "n_layers", most=MAX_LAYERS)
        require_integers(self, "conv_kernel_size", least=2)
        require_flags(self, "has_conv_layer_norm", "use_bias", "xscaling")
        require(self.subsampling_factor in (4, 8), "subsampling_factor", self.subsampling_factor, "4 or 8")
        require(self.d_model % self.n_heads == 0, "n_heads", self.n_heads, f"a divisor of d_model {self.d_model}")
        require(self.d_model % 2 == 0, "d_model", self.d_model, "an even number")
        require(not self.is_offline or self.conv_kernel_size % 2 == 1, "conv_kernel_size", self.conv_kernel_size,
                 "an odd number, for centered convolutions")  # fmt: skip
        self._check_band()
        self._check_menu()
        for context in self.contexts:
            require_integers(context, *context._fields, least=0, most=MAX_CONTEXT)
            require(
                context.left > 0 and context.left % context.chunk_encoder_frames == 0,
                "att_context_size",
                list(context),
                "[left, right] with right >= 0 and left a positive multiple of right + 1",
            )

    def _check_band(self) -> None:
        if self.attention_band is None:
            return
        object.__setattr__(self, "attention_band", tuple(self.attention_band))
        band = self.attention_band
        fits = len(band) == 2 and all(type(frames) is int and 0 <= frames <= MAX_CONTEXT for frames in band)
        require(self.is_offline and fits, "attention_band", list(band), f"two numbers up to {MAX_CONTEXT}, if offline")

    def _check_menu(self) -> None:
        if self.live_menu is None:
            return
        menu = LiveMenu(*(tuple(sizes) for sizes in self.live_menu))
        object.__setattr__(self, "live_menu", menu)
        fits = all(sizes and all(type(size) is int and 0 <= size <= MAX_CONTEXT for size in sizes) for sizes in menu)
        fits = fits and min(menu.chunks) > 0 and self.is_offline and self.attention_band is None
        require(fits, "live_menu", [*map(list, menu)], f"left, chunk and right sizes up to {MAX_CONTEXT}, if offline")

    @property
    def is_offline(self) -> bool:
        """True for a model without state, whose frames depend on all audio of a window."""
        return not self.contexts

    @property
    def subsampling_layers(self) -> int:
        """Strided layers, each of which halves the frame rate."""
        return int(math.log2(self.subsampling_factor))

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def subsampled_mel_bins(self) -> tuple[int, ...]:
        """Mel bins after each strided layer: floor(F / 2) + 1 with the causal padding of 2 and 1, else ceil(F / 2)."""
        bins = [self.mel_bins]
        for _ in range(self.subsampling_layers):
            bins.append((bins[-1] + 1) // 2 if self.is_offline else bins[-1] // 2 + 1)
        return tuple(bins[1:])

    @property
    def default_context(self) -> AttentionContext:
        """The first context with chunks of `DEFAULT_CHUNK_MEL_FRAMES`, else the first of all."""
        factor = self.subsampling_factor
        fitting = [each for each in self.contexts if factor * each.chunk_encoder_frames == DEFAULT_CHUNK_MEL_FRAMES]
        return (fitting or self.contexts)[0]

    def decoding_chunk_frames(self, context: AttentionContext | None) -> int:
        """Encoder frames of a chunk, which endpoints are counted in; of an offline model those of the default chunk."""
        if self.is_offline:
            return DEFAULT_CHUNK_MEL_FRAMES // self.subsampling_factor
        return self.select_context(context).chunk_encoder_frames

    def select_context(self, context: AttentionContext | None) -> AttentionContext:
        """Returns `context`, or the default for None.

        Raises SettingError for a context that was not trained, and for an offline model.
        """
        if self.is_offline:
            raise SettingError(NO_CONTEXTS)
        if context is None:
            return self.default_context
        if context not in self.contexts:
            known = " ".join(map(str, self.contexts))
            raise SettingError(f"context {AttentionContext(*context)} is not one of this checkpoint's: {known}")
        return AttentionContext(*context)


STANDARD, FACTORIZED = "standard", "factorized"
"""Kinds of transducers: RNN-T or TDT; one whose labels are scored by an internal language model (ILM)."""
MAX_ILM_ALPHA, MAX_ILM_BETA = 2.0, 10.0


class IlmPair(NamedTuple):
    """Weights of the ILM in equations 4 and 5 of the factorized transducer's paper (docs/factorized.md)."""

    alpha: float = 1.0
    """Weight inside the softmax over labels; 1 in training."""
    beta: float = 0.0
    """Weight of the ILM's log-probability that is added to each label's score."""


def _ilm_pair(key: str, value: object) -> IlmPair:
    numbers = value if isinstance(value, list | tuple) and len(value) == len(IlmPair._fields) else ()
    limits = (MAX_ILM_ALPHA, MAX_ILM_BETA)
    fits = [type(number) in (int, float) and 0 <= number <= high for number, high in zip(numbers, limits, strict=False)]
    require(bool(fits) and all(fits), key, value, f"[alpha, beta] from 0 to {limits[0]:g} and from 0 to {limits[1]:g}")
    return IlmPair(*map(float, numbers))


@dataclass(frozen=True)
class TransducerConfig:
    """Prediction network (LSTM), joint, and the meaning of the joint's outputs."""

    vocabulary_size: int
    """Labels without blank; blank is the label `vocabulary_size`."""
    predictor_hidden: int
    predictor_layers: int
    joint_hidden: int
    """J, the joint's width; of a factorized transducer that of the blank branch."""
    joint_activation: str
    tdt_durations: tuple[int, ...]
    """Encoder frames of each duration output; empty for RNN-T."""
    max_symbols: int = DEFAULT_MAX_SYMBOLS
    """Maximum labels at one frame; then greedy search advances by one frame."""
    kind: str = STANDARD
    ilm_beam: IlmPair | None = None
    """Default weights of the internal language model in beam search; None without one."""
    ilm_greedy: IlmPair | None = None
    """Default weights in greedy search; None without an internal language model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tdt_durations", tuple(self.tdt_durations))
        require_integers(self, "vocabulary_size", "predictor_hidden", "joint_hidden", "max_symbols")
        require_integers(self, "predictor_layers", most=MAX_LAYERS)
        require(self.joint_activation in ("relu", "tanh", "sigmoid"), "joint.jointnet.activation",
                 self.joint_activation, "relu, tanh, sigmoid")  # fmt: skip
        durations = self.tdt_durations
        fits = all(type(d) is int and 0 <= d <= MAX_CONTEXT for d in durations)
        fits = fits and len(set(durations)) == len(durations)
        require(fits, "tdt_durations", list(durations), "different numbers of frames, none negative")
        require(not durations or max(durations) > 0, "tdt_durations", list(durations), "at least one above 0")
        require(self.kind in (STANDARD, FACTORIZED), "transducer.kind", self.kind,
                 f"{STANDARD} (RNN-T and TDT), {FACTORIZED}")  # fmt: skip
        self._check_ilm()

    def _check_ilm(self) -> None:
        for key in ("ilm_beam", "ilm_greedy"):
            pair = getattr(self, key)
            if self.is_factorized:
                object.__setattr__(self, key, IlmPair() if pair is None else _ilm_pair(key, pair))
            else:
                require(pair is None, key, pair, f"a pair of a transducer of kind {FACTORIZED}")
        if self.is_factorized:
            require(not self.is_tdt, "tdt_durations", list(self.tdt_durations), f"[] for kind {FACTORIZED}")
            require(self.joint_activation == "tanh", "joint_activation", self.joint_activation,
                     f"tanh for kind {FACTORIZED}")  # fmt: skip

    @property
    def name(self) -> str:
        """The kind in words."""
        return "factorized transducer" if self.is_factorized else "TDT" if self.is_tdt else "RNN-T"

    @property
    def is_factorized(self) -> bool:
        """True for a factorized transducer, which has an internal language model."""
        return self.kind == FACTORIZED

    @property
    def is_tdt(self) -> bool:
        """True for a token-and-duration transducer."""
        return bool(self.tdt_durations)

    @property
    def joint_outputs(self) -> int:
        """Outputs for labels, blank and durations: V + 1 + D."""
        return self.vocabulary_size + 1 + len(self.tdt_durations)

    @property
    def row_width(self) -> int:
        """Width of a projected encoder frame and of a projected prediction: J, of a factorized transducer J + V."""
        return self.joint_hidden + (self.vocabulary_size if self.is_factorized else 0)


@dataclass(frozen=True)
class CtcConfig:
    """CTC head: one linear layer from an encoder frame to the logits of labels and blank."""

    vocabulary_size: int
    """Labels without blank; blank is the label `vocabulary_size`."""

    def __post_init__(self) -> None:
        require_integers(self, "vocabulary_size")


@dataclass(frozen=True)
class PromptConfig:
    """Language prompts: each encoder frame x becomes `W2 relu(W1 [x; onehot(p)] + b1) + b2` before every head."""

    prompts: int
    """P, prompts that W1 has columns for."""
    hidden: int
    """Width between the two layers."""
    languages: Mapping[str, int]
    """The prompt of each language that a stream can choose, 0 .. P-1; several may share one."""
    default: str
    """The language of a stream that names none."""
    tags: tuple[int, ...] = ()
    """Labels such as `<en-US>`, with which the model names the recognized language; ascending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))
        require_integers(self, "prompts", "hidden")
        names = [name for name in self.languages if not isinstance(name, str) or not _LANGUAGE.fullmatch(name)]
        require(not names, "languages", names, "letters, digits, - and _")
        require(len(self.languages) > 0, "languages", {}, "at least one")
        for name, prompt in self.languages.items():
            require(type(prompt) is int and 0 <= prompt < self.prompts, f"languages.{name}", prompt,
                     f"integers from 0 to {self.prompts - 1}")  # fmt: skip
        require(self.default in self.languages, "default", self.default, "one of the languages")
        require(all(type(tag) is int and tag >= 0 for tag in self.tags), "tags", self.tags, "labels")


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of one checkpoint: an encoder with a Transducer, a CTC head, or both."""

    features: FeatureConfig
    encoder: EncoderConfig
    transducer: TransducerConfig | None
    ctc: CtcConfig | None = None
    prompt: PromptConfig | None = None
    end_tokens: tuple[int, ...] = ()
    """Labels with which the model ends an utterance (`<EOU>`) or a backchannel (`<EOB>`); ascending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_tokens", tuple(self.end_tokens))
        require(self.features.mel_bins == self.encoder.mel_bins, "encoder.feat_in", self.encoder.mel_bins,
                 f"preprocessor.features {self.features.mel_bins}")  # fmt: skip
        require(self.encoder.is_offline or not self.features.is_normalized, "preprocessor.normalize", "per_feature",
                 "NA for a cache-aware (streaming) model")  # fmt: skip
        sizes = {head.vocabulary_size for head in (self.transducer, self.ctc) if head is not None}
        require(len(sizes) == 1, "vocabulary_size", sorted(sizes), "a transducer, a CTC head, or both of one size")
        require(max(self.tags, default=0) < max(sizes), "tags", self.tags, f"labels below {max(sizes)}")
        fits = all(type(label) is int and 0 <= label < max(sizes) for label in self.end_tokens)
        require(fits, "end_tokens", self.end_tokens, f"labels from 0 to {max(sizes) - 1}")

    @property
    def tags(self) -> tuple[int, ...]:
        """Labels that are language tags; none for a model without prompts."""
        return () if self.prompt is None else tuple(self.prompt.tags)

    @property
    def textless_labels(self) -> tuple[int, ...]:
        """Labels that are no text, and that language models and phrases know nothing of: tags and end tokens."""
        return (*self.tags, *self.end_tokens)

    @property
    def vocabulary_size(self) -> int:
        """V, labels without blank."""
        head = self.transducer or self.ctc
        assert head is not None  # checked when built
        return head.vocabulary_size

    @property
    def head_name(self) -> str:
        """The heads in words: RNN-T, TDT or factorized transducer, with or without " + CTC", or CTC."""
        kind = None if self.transducer is None else self.transducer.name
        return " + ".join(name for name in (kind, "CTC" if self.ctc else None) if name)

    @property
    def encoder_frame_samples(self) -> int:
        """Samples between two encoder frames."""
        return self.features.hop_samples * self.encoder.subsampling_factor

    @property
    def encoder_frame_ms(self) -> float:
        """Milliseconds between two encoder frames."""
        return 1000.0 * self.encoder_frame_samples / self.features.sample_rate_hz

    def chunk_ms(self, context: AttentionContext) -> float:
        """Milliseconds of audio per chunk."""
        return context.chunk_encoder_frames * self.encoder_frame_ms
