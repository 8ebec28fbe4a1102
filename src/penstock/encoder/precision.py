"""Precision of the encoder: the type of its weights, activations, keys and values.

Weights are read and folded in float32 and cast last. Log-mel features, logits and scores of searches stay float32.
"""

import logging
from collections.abc import Callable

import torch

from penstock.encoder.encoder import StreamingEncoder, may_use_openvino
from penstock.encoder.int8 import Int8Choice, Int8Source, activation_bits, quantize
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import CheckpointError, SettingError
from penstock.graphs.program import Driver
from penstock.kernels.capability import AUTO as KERNELS_AUTO
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.config import AttentionContext
from penstock.model.int8_tensors import Int8Tensor
from penstock.runtime import prepare_device

AUTO, FLOAT32, TF32, FLOAT16, BFLOAT16, INT8 = "auto", "float32", "tf32", "float16", "bfloat16", "int8"
PRECISIONS = (AUTO, FLOAT32, TF32, FLOAT16, BFLOAT16, INT8)
"""Values of the setting `precision`."""
MAX_PROBE_ERROR = 5e-3
"""Largest error of float16 to float32, ||difference|| / ||reference||; 8e-4 is usual."""
LEAST_BITS = 7
"""Bits of int8 inputs that every CPU has."""
_TYPES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}
_PROBE_STREAMS, _PROBE_CHUNKS, _PROBE_SEED = 2, 6, 0
_PROBE_MEL_FRAMES = (400, 250)

_log = logging.getLogger(__name__)


def resolve_precision(precision: str, device: str | torch.device) -> str:
    """Returns what `precision` means on a device, without `auto`; SettingError if it is unknown or not possible."""
    is_cuda = torch.device(device).type == "cuda"
    if precision not in PRECISIONS:
        raise SettingError(f"precision {precision!r} is not supported; supported: {', '.join(PRECISIONS)}")
    if precision == (INT8 if is_cuda else TF32):
        accepted = ", ".join(one for one in PRECISIONS if one != precision)
        needed = "the CPU" if is_cuda else "a CUDA device"
        raise SettingError(f"precision {precision!r} needs {needed}, not {device}; accepted: {accepted}")
    return {True: FLOAT16, False: FLOAT32}[is_cuda] if precision == AUTO else precision


def number_type(precision: str, device: str | torch.device) -> torch.dtype:
    """Type of the numbers of the encoder's weights and state."""
    return _TYPES.get(resolve_precision(precision, device), torch.float32)


def prepare_precision(precision: str, device: str | torch.device) -> torch.device:
    """`prepare_device`, with products of float32 in TF32 unless `precision` is float32."""
    return prepare_device(device, allow_tf32=resolve_precision(precision, device) != FLOAT32)


def open_encoder(
    checkpoint: Checkpoint,
    context: AttentionContext,
    slots: int,
    device: str | torch.device = "cpu",
    precision: str = AUTO,
    driver: Driver | None = None,
    kernels: str = KERNELS_AUTO,
) -> StreamingEncoder:
    """Opens the encoder in a precision.

    kernels: TORCH for none, else in 16 bit on a CUDA device where they run. float16 runs a probe first: where
    its frames are not finite or too far from those of float32, the encoder is float32 (on a CUDA device with TF32),
    with a warning. int8 is chosen by `Int8Choice`; where none is possible the encoder is float32, with a warning, too.
    """
    precision = checkpoint.choose_precision(precision, str(device))
    int8 = _open_choice(checkpoint, precision, device)
    if int8 is not None and has_int8():
        encoder = StreamingEncoder(checkpoint, context, slots, device, engine=TORCH, driver=driver, int8=int8)
        if is_used(int8, may_use_openvino(checkpoint.config.encoder)):
            return encoder
        del encoder
    engine = TORCH if kernels == TORCH and torch.device(device).type == "cuda" else None
    dtype = _choose_type(precision, device, lambda tried: probe(checkpoint, context, device, tried, engine))
    encoder = StreamingEncoder(checkpoint, context, slots, device, dtype, engine, driver)
    encoder.int8 = int8
    _log.info("encoder: engine `%s`, %s", encoder.engine, dtype)
    return encoder


def open_window_encoder(
    checkpoint: Checkpoint, device: str | torch.device = "cpu", precision: str = AUTO
) -> WindowEncoder:
    """Opens the encoder of an offline model in a precision, as `open_encoder`."""
    precision = checkpoint.choose_precision(precision, str(device))
    int8 = _open_choice(checkpoint, precision, device)
    if int8 is not None and has_int8():
        encoder = WindowEncoder(checkpoint, device, int8=int8)
        is_used(int8)
        return encoder
    dtype = _choose_type(precision, device, lambda tried: probe_windows(checkpoint, device, tried))
    encoder = WindowEncoder(checkpoint, device, dtype)
    encoder.int8 = int8
    return encoder


def store_int8(checkpoint: Checkpoint) -> Checkpoint:
    """Rewrites a bundle's products in int8, chosen for 7-bit inputs, which every CPU has; as it was, with a warning,
    where none is exact enough. Raises CheckpointError where this torch has no int8 products."""
    check_storable(checkpoint)
    int8, encoder = Int8Choice(bits=LEAST_BITS), checkpoint.config.encoder
    if encoder.is_offline:
        WindowEncoder(checkpoint, int8=int8)
    else:
        StreamingEncoder(checkpoint, encoder.contexts[0], 1, engine=TORCH, int8=int8)
    if not is_used(int8):
        return checkpoint
    out = "encoder.subsampling.out.weight"
    if out in int8.factors:  # its product reads columns in another order
        int8.factors[out] = int8.factors[out].view(-1, encoder.subsampling_channels).t().flatten()
    tensors, tokenizer = checkpoint.tensors(as_stored=True), checkpoint.tokenizer_path.read_bytes()
    stored = quantized(tensors, int8)
    return write_checkpoint(checkpoint.directory, checkpoint.config, tensors, tokenizer, checkpoint.source, stored)


def check_storable(checkpoint: Int8Source) -> None:
    """Raises CheckpointError where the products of a bundle cannot be stored in int8."""
    if checkpoint.int8:
        raise CheckpointError(f"{checkpoint.directory}: is stored in int8 already")
    if not activation_bits():
        raise CheckpointError(f"int8: torch {torch.__version__} has no int8 product for this CPU")


def quantized(tensors: dict[str, torch.Tensor], int8: Int8Choice) -> dict[str, Int8Tensor]:
    """Quantizes the tensors that were chosen."""
    return {
        name: Int8Tensor(*quantize(tensors[name].float() * factors), factors.clone())
        for name, factors in int8.factors.items()
    }


def _open_choice(checkpoint: Checkpoint, precision: str, device: str | torch.device) -> Int8Choice | None:
    return Int8Choice(checkpoint) if resolve_precision(precision, device) == INT8 else None


def has_int8(what: str = "encoder") -> bool:
    """True where `what` can be computed in int8; a warning where not."""
    if not activation_bits():
        _log.warning("%s: torch %s has no int8 product for this CPU: float32 is used", what, torch.__version__)
    return activation_bits() > 0


def is_used(int8: Int8Choice, is_faster_in_float32: bool = False, what: str = "encoder") -> bool:
    """Says what was chosen; True if it is int8."""
    if not int8.int8:
        _log.warning("%s: no product is large and exact enough for int8: float32 is used", what)
    elif is_faster_in_float32:
        _log.warning("encoder: a model of this size is faster in float32 than in int8; %s", int8)
    else:
        _log.info("%s: %s", what, int8)
    return int8.int8 > 0


def _choose_type(
    precision: str, device: str | torch.device, probe_error: Callable[[torch.dtype], float]
) -> torch.dtype:
    """The type of the encoder's numbers; probe_error: the relative error of a type."""
    chosen = resolve_precision(precision, device)
    dtype = _TYPES.get(chosen, torch.float32)
    if dtype == torch.float16:
        prepare_precision(FLOAT32, device)  # the reference is without TF32
        error = probe_error(dtype)
        if not error <= MAX_PROBE_ERROR:  # NaN, too
            message = (
                "encoder: float16 has a relative error of %.2g, above %g: float32 is used, which takes twice the memory"
            )
            _log.warning(message, error, MAX_PROBE_ERROR)
            dtype = torch.float32
    prepare_precision(chosen, device)
    return dtype


@torch.inference_mode()
def probe(
    checkpoint: Checkpoint,
    context: AttentionContext,
    device: str | torch.device,
    dtype: torch.dtype,
    engine: str | None = None,
) -> float:
    """Returns the relative error of `dtype` to float32 over random log-mel; NaN or infinity if it overflows."""
    frames = []
    for tried in (torch.float32, dtype):  # one after another, so that one is in memory at a time
        encoder = StreamingEncoder(checkpoint, context, _PROBE_STREAMS, device, tried, engine)
        slots = torch.arange(_PROBE_STREAMS, device=device)
        size = encoder.config.subsampling_factor * context.chunk_encoder_frames
        generator, parts = torch.Generator().manual_seed(_PROBE_SEED), []
        for _ in range(_PROBE_CHUNKS):  # as loud as speech, bins of its own in every frame
            mel = 3.0 * torch.randn(_PROBE_STREAMS, size, encoder.config.mel_bins, generator=generator) - 6.0
            parts.append(encoder.step(slots, mel.to(device), torch.full_like(slots, size)).frames.float())
        frames.append(torch.cat(parts, dim=1))
        del encoder
    return relative_error(frames[1], frames[0])


def probe_windows(checkpoint: Checkpoint, device: str | torch.device, dtype: torch.dtype) -> float:
    """`probe` for an offline model, over windows of normalized log-mel."""
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    bins = checkpoint.config.encoder.mel_bins
    mels = [torch.randn(frames, bins, generator=generator) for frames in _PROBE_MEL_FRAMES]
    frames = [torch.cat(WindowEncoder(checkpoint, device, tried).encode(mels)) for tried in (torch.float32, dtype)]
    return relative_error(frames[1], frames[0])


def relative_error(values: torch.Tensor, reference: torch.Tensor) -> float:
    """||values - reference|| / ||reference||."""
    return float((values.double() - reference.double()).norm() / reference.double().norm())
