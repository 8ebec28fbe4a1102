"""Int8 on a CPU: Int8Linear, a product with a matrix of 8-bit numbers, and Int8Choice, which products it replaces.

Weights have a scale per output. Inputs have one per row, computed from the row alone: its result has the same bits
whatever the other rows hold and however many there are. With one scale for the batch, as `linear_dynamic` and ONNX's
DynamicQuantizeLinear have it, a quiet stream beside a loud one would be rounded away.

What is replaced is chosen on speech, in a predictor on random labels, while weights are loaded. An encoder is built
part by part in float32. Each part then runs over speech, its large products are replaced, and their float32 weights are
dropped before the next part is read.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from penstock import linear
from penstock.encoder.attention import PageIndex, StepStreams, index_pages
from penstock.encoder.modules import Subsampling
from penstock.encoder.state import EncoderState
from penstock.frontend.audio_file import read_audio
from penstock.frontend.log_mel import LogMel, MelSource
from penstock.frontend.window_mel import WindowMel
from penstock.linear import Linear
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext

_EXTREME_INPUTS = 512
_TINY = torch.finfo(torch.float32).tiny
_QUANTIZED_TYPES = r".*quantiz"
"""Matches warnings that torch's quantized types will be removed: `activation_bits` says when they are."""
SPEECH = Path(__file__).parents[1] / "bundled" / "speech"
"""Two recordings, 4 s."""
MAX_ERROR = 0.05
"""Largest error of a product in int8 to float32 on speech, ||difference|| / ||reference||: one with more stays float32.
The bundled models have at most 0.03."""
_SMOOTHED_GAIN = 0.8
"""Channels are smoothed where that leaves at most this share of the error."""
_SUBSAMPLING = "subsampling."
_OWNERS = ("penstock.encoder.", "penstock.speakers.")
"""Modules whose objects hold products."""
_CHUNKS = 4
"""Chunks that each stream of the speech has: later ones attend to earlier ones."""


class Int8Linear:
    """x @ weight.T + bias, as `Linear`."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
        bits: int | None = None,
    ):
        """weight: [out, in] float32, finite; bias: [out]. Stores a copy of `weight`, a byte for each number.

        factors: [in], positive: inputs are divided by them and the weight's columns multiplied, so that channels of
        very different magnitudes share a row's scale. bits: of the inputs, by default `activation_bits()`.
        """
        bits = bits or activation_bits()
        assert bits, "the operators are missing"
        self.bias, self.factors = bias, factors
        self._largest = (1 << (bits - 1)) - 1
        self._packed = _pack(weight if factors is None else weight * factors)
        self._inverse = None if factors is None else factors.reciprocal()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [..., in] to [..., out]. A row that is not finite gives one that is not finite."""
        out, scale = self._scaled(x)
        return out.mul_(scale) if self.bias is None else torch.addcmul(self.bias, out, scale)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Returns residual [..., out] + self(x)."""
        out, scale = self._scaled(x)
        out = torch.addcmul(residual, out, scale)
        return out if self.bias is None else out.add_(self.bias)

    def _scaled(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The product of rows whose largest magnitude is 1, and what it was, [..., 1]."""
        if self._inverse is not None:
            x = x * self._inverse
        scaled = x.abs()
        scale = scaled.amax(dim=-1, keepdim=True).clamp_min_(_TINY)  # zeros stay zeros
        return _multiply(torch.div(x, scale, out=scaled), self._largest, self._packed), scale


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns numbers [out, in] int8 and the largest magnitude of each row [out], which is 127."""
    quantized, largest = _quantize(weight)
    return quantized.int_repr(), largest


def _quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = weight.abs().amax(dim=1).clamp_min_(_TINY)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_QUANTIZED_TYPES)
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        return torch.quantize_per_channel(weight, largest.double() / 127, zeros, 0, torch.qint8), largest


def _pack(weight: torch.Tensor) -> torch.ScriptObject:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_QUANTIZED_TYPES)
        return torch.ops.quantized.linear_prepack(_quantize(weight)[0], None)


def _multiply(x: torch.Tensor, largest: int, packed: torch.ScriptObject) -> torch.Tensor:
    """x: [..., in] in -1 .. 1; `largest` is what 1 becomes."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, 1 / largest, largest + 1, packed)


@functools.cache
def activation_bits() -> int:
    """8 where sums of 8-bit products are exact, else 7; 0 where this torch or this CPU has no such product.

    Without VNNI two products are added in 16 bits, which overflow with 8-bit inputs and give wrong numbers without a
    word. So the largest inputs and weights are tried: that tells more than the names of a CPU's instructions, which
    torch may not use.
    """
    extreme = torch.ones(2, _EXTREME_INPUTS)
    extreme[1] = -1
    try:
        for bits in (8, 7):
            found = Int8Linear(extreme, bits=bits)(extreme)
            if torch.allclose(found, extreme @ extreme.t(), rtol=1e-3, atol=0):
                return bits
    except (AttributeError, RuntimeError, NotImplementedError):  # removed, or no engine for this CPU
        pass
    return 0


class Int8Source(MelSource, Protocol):
    """A checkpoint whose products may be in int8."""

    directory: Path
    int8: frozenset[str]
    """Names of the tensors that are stored in int8."""

    def factors(self, name: str) -> torch.Tensor:
        """Smoothing factors [in] of a tensor in int8."""


def speech_mel(checkpoint: Int8Source) -> torch.Tensor:
    """Log-mel [N, F] of the speech, as the model wants it."""
    log_mel = LogMel.of(checkpoint)
    samples = [
        torch.from_numpy(read_audio(path, log_mel.config.sample_rate_hz)) for path in sorted(SPEECH.glob("*.flac"))
    ]
    return WindowMel(log_mel)(torch.cat(samples))


class Int8Choice:
    """Replaces products, and remembers what it chose."""

    def __init__(
        self,
        checkpoint: Int8Source | None = None,
        bits: int | None = None,
        tensor_names: Callable[[str], list[str]] | None = None,
    ) -> None:
        """checkpoint: its products in int8 are those it stores so, if any; bits: of inputs, as in `Int8Linear`.

        tensor_names: gives the checkpoint's tensors of a product, by default of an encoder.
        """
        self._stored = checkpoint if checkpoint is not None and checkpoint.int8 else None
        self._bits, self._tensor_names = bits, tensor_names or _tensor_names
        self.int8 = self.smoothed = 0
        """Products."""
        self.float32: list[str] = []
        """Names of large products that stay float32."""
        self.factors: dict[str, torch.Tensor] = {}
        """Smoothing factors [in] of each tensor whose product is in int8, in the checkpoint's order."""

    @property
    def products(self) -> dict[str, int]:
        """Large products by precision."""
        return {"int8": self.int8, "float32": len(self.float32)}

    @property
    def needs_speech(self) -> bool:
        """False where the choice is stored."""
        return self._stored is None

    @torch.no_grad()
    def convert(self, name: str, part: object, run: Callable[[], object] | None) -> None:
        """Replaces the large products of a part; run: computes the part for speech, or other inputs, in float32."""
        if self._stored is not None or run is None:
            for owner, attribute, path, product in list(_products(part, name)):
                setattr(owner, attribute, self._as_stored(path, product))
            return
        found = [each for each in _products(part, name) if each[3].weight.numel() >= linear.MIN_PACKED_NUMBERS]
        recorders = [_Recorder(product) for *_, product in found]
        for (owner, attribute, _, _), recorder in zip(found, recorders, strict=True):
            setattr(owner, attribute, recorder)
        run()
        for (owner, attribute, path, product), recorder in zip(found, recorders, strict=True):
            setattr(owner, attribute, self._choose(path, product, torch.cat(recorder.inputs)))

    def _as_stored(self, path: str, product: Linear) -> Linear | Int8Linear:
        assert self._stored is not None
        names = self._tensor_names(path)
        if not self._stored.int8.issuperset(names):
            if product.weight.numel() >= linear.MIN_PACKED_NUMBERS:
                self.float32.append(path)
            return product
        factors = self._stored.factors(names[0])
        if path.startswith(_SUBSAMPLING):  # its product reads columns in another order
            assert isinstance(self._stored, Checkpoint)
            factors = factors.view(self._stored.config.encoder.subsampling_channels, -1).t().flatten()
        is_smoothed = bool((factors != 1).any())
        self.int8 += 1
        self.smoothed += is_smoothed
        return Int8Linear(product.weight, product.bias, factors if is_smoothed else None)

    def _choose(self, path: str, product: Linear, x: torch.Tensor) -> Linear | Int8Linear:
        """x: inputs [M, in]."""
        weight = product.weight
        if weight.sum().isfinite():
            exact = x @ weight.t()
            chosen = Int8Linear(weight, product.bias, bits=self._bits)
            error = _error(chosen, x, exact)
            smoothed = Int8Linear(weight, product.bias, _smoothing(weight, x), self._bits)
            if (less := _error(smoothed, x, exact)) <= _SMOOTHED_GAIN * error:
                chosen, error = smoothed, less
            if error <= MAX_ERROR:
                self.int8 += 1
                self.smoothed += chosen.factors is not None
                factors = torch.ones(weight.shape[1]) if chosen.factors is None else chosen.factors
                self.factors |= dict.fromkeys(self._tensor_names(path), factors)
                return chosen
        self.float32.append(path)
        return product

    def __str__(self) -> str:
        kept = f"; float32: {', '.join(self.float32)}" if self.float32 else ""
        return (
            f"{self.int8} products in int8 with {activation_bits()}-bit inputs, {self.smoothed} of them smoothed{kept}"
        )


class _Recorder:
    """A product that keeps its inputs."""

    def __init__(self, product: Linear):
        self._product = product
        self.inputs: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x.clone())
        return self._product(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x.clone())
        return self._product.add_to(residual, x)


def _tensor_names(path: str) -> list[str]:
    """The checkpoint's tensors of a product."""
    if path.startswith(_SUBSAMPLING):
        return ["encoder.subsampling.out.weight"]
    owner, _, name = path.rpartition(".")
    return [f"encoder.{owner}.{each}.weight" for each in (("query", "key", "value") if name == "qkv" else (name,))]


def _products(part: object, path: str) -> Iterator[tuple[Any, str, str, Linear]]:
    """The products of a part and of its parts: owner, attribute, name, product."""
    for attribute, value in vars(part).items():
        name = f"{path}.{attribute.strip('_')}"
        if isinstance(value, Linear):
            yield part, attribute, name, value
        elif hasattr(value, "__dict__") and type(value).__module__.startswith(_OWNERS):
            yield from _products(value, name)


def _smoothing(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Factors [in] that leave inputs and weights of a channel with the same largest magnitude."""
    of_inputs, of_weights = x.abs().amax(dim=0), weight.abs().amax(dim=0)
    least = torch.finfo(torch.float32).eps
    floors = [least * each.max().clamp_min(least) for each in (of_inputs, of_weights)]
    factors = (of_inputs.maximum(floors[0]) / of_weights.maximum(floors[1])).sqrt()
    return torch.where((of_inputs > 0) & (of_weights > 0), factors, factors.median())


def _error(product: Int8Linear, x: torch.Tensor, exact: torch.Tensor) -> float:
    """Without the bias, which would hide it."""
    out = product(x)
    if product.bias is not None:
        out = out - product.bias
    return float((out - exact).norm() / exact.norm())


class SpeechChunks:
    """Speech as some streams of a few chunks, through a streaming encoder that is being built."""

    def __init__(self, checkpoint: Checkpoint, context: AttentionContext):
        config, mel = checkpoint.config.encoder, speech_mel(checkpoint)
        size = config.subsampling_factor * context.chunk_encoder_frames
        streams = max(len(mel) // (size * _CHUNKS), 1)
        chunks = max(min(len(mel) // (size * streams), _CHUNKS), 1)
        mel = torch.cat([mel, mel.new_zeros(max(size - len(mel), 0), config.mel_bins)])[: streams * chunks * size]
        self._mels = mel.view(streams, chunks, size, -1).unbind(1)
        self._state = EncoderState(config, context, streams, mel.device, mel.dtype)
        self._slots = torch.arange(streams)
        self._indices: list[PageIndex] = []
        self._frames: list[torch.Tensor] = []

    def subsample(self, subsampling: Subsampling) -> None:
        """The first part."""
        state = self._state
        for number, mel in enumerate(self._mels):
            seen, valid = torch.full_like(self._slots, number), torch.full_like(self._slots, mel.shape[1])
            found = subsampling.step(mel, state.columns_of(self._slots), seen == 0, valid)
            state.advance(self._slots, seen, found.columns)
            rows = StepStreams(self._slots, seen, found.valid_encoder_frames)
            frames, halves = state.context.chunk_encoder_frames, state.halves_of(self._slots)
            self._indices.append(index_pages(halves, state.page_ages(seen), rows, frames, mel.dtype))
            self._frames.append(found.frames)

    def run_layer(self, number: int, step: Callable[..., torch.Tensor]) -> None:
        """The next part; step: as `ConformerLayer.step`."""
        state, frames = self._state, self._state.context.chunk_encoder_frames
        tail = state.conv_tails[number]
        for chunk, index in enumerate(self._indices):
            window = torch.cat([tail, tail.new_empty(len(tail), frames, tail.shape[2])], dim=1)
            pages, halves = state.flat_pages[number], state.flat_halves[number]
            x = self._frames[chunk]
            self._frames[chunk] = step(x, pages, halves, index, window, window[:, tail.shape[1] :])
            tail = window[:, frames:]
