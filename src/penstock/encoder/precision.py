"""How exactly the encoder computes: the type of its weights, activations, keys and values.

Weights are read and folded in float32 and cast last. Log-mel features, logits and scores of searches stay float32.
"""

import logging
from collections.abc import Callable

import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.encoder.window.run import WindowEncoder
from penstock.errors import SettingError
from penstock.graphs.driver import Driver
from penstock.kernels.capability import AUTO as KERNELS_AUTO
from penstock.kernels.capability import TORCH
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.runtime import prepare_device

AUTO, FLOAT32, TF32, FLOAT16, BFLOAT16 = "auto", "float32", "tf32", "float16", "bfloat16"
PRECISIONS = (AUTO, FLOAT32, TF32, FLOAT16, BFLOAT16)
"""Values of the setting `precision`."""
MAX_PROBE_ERROR = 5e-3
"""Of float16 to float32, ||difference|| / ||reference||; 8e-4 is usual."""
_TYPES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}
_PROBE_STREAMS, _PROBE_CHUNKS, _PROBE_SEED = 2, 6, 0
_PROBE_MEL_FRAMES = (400, 250)

_log = logging.getLogger(__name__)


def resolve_precision(precision: str, device: str | torch.device) -> str:
    """Returns what `precision` means on a device, without `auto`; SettingError if it is unknown or not possible."""
    is_cuda = torch.device(device).type == "cuda"
    if precision not in PRECISIONS:
        raise SettingError(f"precision {precision!r} is not supported; supported: {', '.join(PRECISIONS)}")
    if precision == TF32 and not is_cuda:
        accepted = ", ".join(one for one in PRECISIONS if one != TF32)
        raise SettingError(f"precision 'tf32' needs a CUDA device, not {device}; accepted: {accepted}")
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
    with a warning.
    """
    engine = TORCH if kernels == TORCH and torch.device(device).type == "cuda" else None
    dtype = _choose_type(precision, device, lambda tried: probe(checkpoint, context, device, tried, engine))
    encoder = StreamingEncoder(checkpoint, context, slots, device, dtype, engine, driver)
    _log.info("encoder: engine `%s`, %s", encoder.engine, dtype)
    return encoder


def open_window_encoder(
    checkpoint: Checkpoint, device: str | torch.device = "cpu", precision: str = AUTO
) -> WindowEncoder:
    """Opens the encoder of an offline model in a precision, with the probe of `open_encoder`."""
    dtype = _choose_type(precision, device, lambda tried: probe_windows(checkpoint, device, tried))
    return WindowEncoder(checkpoint, device, dtype)


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
