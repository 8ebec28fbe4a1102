"""The streaming FastConformer encoder: one static shape for streams of every age.

The output equals the same network run over the whole utterance with the same attention context.
"""

import importlib
import logging
import math
import os

import torch

from penstock.encoder.captured_step import CapturedStep
from penstock.encoder.int8 import Int8Choice
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import Encoded, TorchStep
from penstock.graphs.program import Driver
from penstock.kernels.capability import FUSED, TORCH, available
from penstock.kernels.contracts import MAX_HEAD_WIDTH, MAX_KEYS
from penstock.model.bundle import Checkpoint, encoder_shapes
from penstock.model.config import AttentionContext, EncoderConfig
from penstock.runtime import check_device_works, prepare_device

OPENVINO = "openvino"
_log = logging.getLogger(__name__)

MAX_BATCH = 64
"""Streams of one step without graphs: on a CPU a larger one is not faster."""


class StreamingEncoder:
    """Encodes one chunk of many streams at a time; the state of each stream lives in a slot.

    engine: TORCH, FUSED (PyTorch with kernels for attention and convolution) or OPENVINO; by default kernels for 16 bit
    on a GPU, OpenVINO if it is installed, for float32 on a CPU and models of the bundled ones' size, else PyTorch.
    PyTorch is the reference; all give the same frames up to rounding (1e-4, more in 16 bit).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext,
        slots: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        engine: str | None = None,
        driver: Driver | None = None,
        int8: Int8Choice | None = None,
    ):
        """driver: captures the step of PyTorch for a few batch sizes; without one any batch runs as it is.

        int8: replaces large products of the engine TORCH on a CPU while its weights are read.
        """
        config = checkpoint.config.encoder
        device = prepare_device(device)
        self.context = config.select_context(context)
        self.config = config
        is_captured_on_cpu = driver is not None and device.type == "cpu"
        self.engine = engine or (
            TORCH if is_captured_on_cpu else _choose_engine(checkpoint, self.context, device, dtype)
        )
        # One slot more for the rows that pad a captured step.
        self.state = EncoderState(config, self.context, slots + (driver is not None), device, dtype)
        self.int8 = int8
        """The choice of products in int8; None in other precisions."""
        self.max_batch = MAX_BATCH
        """Streams of one step."""
        if self.engine == OPENVINO:
            from penstock.encoder.openvino_step import OpenVinoStep

            self._step: OpenVinoStep | TorchStep | CapturedStep = OpenVinoStep(checkpoint, self.state)
            return
        step = TorchStep(checkpoint, self.state, dtype, self.engine == FUSED, int8)
        if self.engine == FUSED and engine is None and not self._runs(step):
            self.engine, step.has_kernels = TORCH, False
        self._step = step
        if driver is not None:
            self._step = CapturedStep(self._step, self.state, driver)
            self.max_batch = self._step.max_batch

    @torch.inference_mode()
    def _runs(self, step: TorchStep) -> bool:
        """Whether the kernels compile for this network and run; resets the state."""
        device = self.state.chunks_seen.device
        slots = torch.zeros(1, dtype=torch.int64, device=device)
        size = self.config.subsampling_factor * self.context.chunk_encoder_frames
        try:
            step(slots, torch.zeros(1, size, self.config.mel_bins, device=device), torch.full_like(slots, size))
            has_run = True
        except Exception as error:  # noqa: BLE001 - of the compiler or of the device
            check_device_works(device, error)
            _log.warning("encoder: its kernels failed, PyTorch is used: %s: %s", type(error).__name__, error)
            has_run = False
        self.state.clear()
        return has_run

    def open(self, slots: torch.Tensor) -> None:
        """Assigns `slots` [n] int64 to new streams."""
        self.state.reset(slots)

    def step(self, slots: torch.Tensor, mel: torch.Tensor, valid_mel_frames: torch.Tensor) -> Encoded:
        """Encodes one chunk of each stream and updates its state. Never synchronizes with the host.

        slots: [B] int64, all different; mel: [B, N, F] float32, N = factor * T; valid_mel_frames: [B] int64, N except
        for the last chunk of a stream.
        """
        return self._step(slots, mel, valid_mel_frames)


_OPENVINO_NUMBERS = range(1 << 20, 1 << 24)
"""Weights of encoders for OpenVINO. Smaller ones take longer to compile than they save; larger ones are not held
several times, and PyTorch has their large matrices in oneDNN's layout, too."""


def can_use_openvino() -> bool:
    """True if OpenVINO can be imported and the CPU has AVX2, without which it computes this network wrongly.

    ONEDNN_MAX_CPU_ISA restricts one part of OpenVINO, and OV_CPU_MAX_ISA the others. Where they differ it crashes or
    computes wrongly: PyTorch is taken then.
    """
    has_avx2 = "AVX" in torch.backends.cpu.get_cpu_capability()
    if not has_avx2 or os.environ.get("ONEDNN_MAX_CPU_ISA") != os.environ.get("OV_CPU_MAX_ISA"):
        return False
    try:
        importlib.import_module("openvino")
    except ImportError:  # absent, or without a library that it needs
        return False
    return True


def first_batches(largest: int, engine: str) -> list[int]:
    """The numbers of streams to run a step with before the first request, the largest first.

    Its memory is allocated then, and OpenVINO's models are compiled.
    """
    if engine != OPENVINO:
        return [largest]
    from penstock.encoder.openvino_step import BATCH_SIZES

    return sorted({min(size, largest) for size in BATCH_SIZES}, reverse=True)


def _choose_engine(checkpoint: Checkpoint, context: AttentionContext, device: torch.device, dtype: torch.dtype) -> str:
    config = checkpoint.config.encoder
    if device.type != "cpu":
        fits = dtype != torch.float32 and fits_kernels(config, context)
        return FUSED if fits and available(device) else TORCH
    return OPENVINO if dtype == torch.float32 and may_use_openvino(config) else TORCH


def may_use_openvino(config: EncoderConfig) -> bool:
    """True if a model of this size is computed by OpenVINO in float32 on this CPU."""
    return sum(map(math.prod, encoder_shapes(config).values())) in _OPENVINO_NUMBERS and can_use_openvino()


def fits_kernels(config: EncoderConfig, context: AttentionContext) -> bool:
    """True if the kernels of a layer have room for a stream's keys."""
    return context.left + context.chunk_encoder_frames <= MAX_KEYS and config.d_head <= MAX_HEAD_WIDTH
