"""What the measurements on an NVIDIA H200 should be, written on 2026-11-22, before anything ran on a GPU.

Times come from counts: floating-point operations, bytes and launches of a step, divided by rates. A measurement far
from its prediction says that a count or a rate is wrong. They are not results.
"""

from typing import NamedTuple

import torch

FP32, BF16, FP16 = "fp32", "bf16", "fp16"
COPY_GB_PER_S = 4200.0
"""Bytes read and written by a copy within the device: 4.8 TB/s of the data sheet at 87 %."""
_TERAFLOPS = {FP32: 45.0, BF16: 480.0, FP16: 480.0}
"""Of matrix products; float32 without TF32."""
_LAUNCH_MS = 0.0055
"""A kernel that the host launches alone."""
_NODE_MS = 0.0015
"""A node of a graph that depends on the one before."""
_HOST_ROUND_MS = 0.015
"""A loop's round whose condition the host reads."""
_LOOP_NODES = 2
"""Nodes of an empty WHILE round: a step, and the kernel that sets the condition."""


class _EncoderCost(NamedTuple):
    """A step of 24 layers of width 1024, per stream."""

    gigaflops_per_encoder_frame: float = 1.16
    total_ms: tuple[tuple[str, dict[int, float]], ...] = (
        (FP32, {1: 0.0645, 4: 0.141, 14: 0.451}),
        (BF16, {1: 0.0273, 4: 0.0313, 14: 0.080}),
    )
    """On an H100, by encoder frames per chunk: matrix products, keys and values, activations. The time of a step is
    proportional to the streams."""
    memory_factor: float = 0.68
    """What is not matrix products: an H200's memory is faster than an H100's."""
    eager_floor_ms: float = 5.5
    """950 launches of the host."""
    captured_floor_ms: float = 1.8


_ENCODER = _EncoderCost()
RELATIVE_ERROR = {BF16: 7.2e-3, FP16: 8.5e-4}
"""Of encoder frames to float32, ||difference|| / ||reference||; measured with the bundled model on a CPU."""
STREAMS = {1: 780, 14: 2300}
"""Streams that keep up in one process in float32, by encoder frames per chunk, with 35 us of host time per chunk."""
LATE_SHARE = 0.001
"""Of the chunks, at most."""


def matrix_product_ms(rows: int, inner: int, columns: int, dtype: str) -> float:
    """[rows, inner] x [inner, columns]: arithmetic, or weights from memory, or a launch."""
    arithmetic = 2e-9 * rows * inner * columns / _TERAFLOPS[dtype]
    value_bytes = 4 if dtype == FP32 else 2
    memory = 1e-6 * value_bytes * (inner * columns + rows * (inner + columns)) / COPY_GB_PER_S
    return max(arithmetic, memory, _LAUNCH_MS)


def graph_ms(nodes: int) -> float:
    """A graph of dependent empty kernels."""
    return nodes * _NODE_MS


def loop_ms(rounds: int, driver: str) -> float:
    """A loop with one empty step."""
    return rounds * (_LOOP_NODES * _NODE_MS if driver == "full_graph" else _HOST_ROUND_MS)


def encoder_step_ms(streams: int, chunk_encoder_frames: int, dtype: str, is_captured: bool) -> float:
    """One step of the 24-layer encoder."""
    products = chunk_encoder_frames * _ENCODER.gigaflops_per_encoder_frame / _TERAFLOPS[dtype]  # GFLOP / TFLOPS = ms
    total = dict(_ENCODER.total_ms)[FP32 if dtype == FP32 else BF16][chunk_encoder_frames]
    each = products + _ENCODER.memory_factor * max(total - products, 0.0)
    floor = _ENCODER.captured_floor_ms if is_captured else _ENCODER.eager_floor_ms
    return max(floor, streams * each)


_ROUNDS = {1: 1, 4: 3, 14: 6}
"""Labels of the stream of a batch that has the most, by encoder frames per chunk."""


def decoder_chunk_ms(decoder: str, kernels: str, driver: str, chunk_encoder_frames: int, is_tdt: bool) -> float:
    """One chunk of a batch in a search, from counted launches per step and expected rounds."""
    labels = _ROUNDS[chunk_encoder_frames]
    if decoder == "alsd":
        rounds = chunk_encoder_frames + labels
        launches = 25 + 166 + rounds * (124 + 12)
    else:
        search = (40 if kernels == "fused" else 42) + 5 * is_tdt + 10 * (decoder == "boosted")
        emit = 28 if kernels == "fused" else 39
        rounds = 2 * labels + 1
        launches = 6 + search + 5 + labels * (search + emit)
    if driver == "full_graph":
        return launches * _NODE_MS
    if driver == "no_while_loops":
        return launches * _NODE_MS + rounds * _HOST_ROUND_MS
    return launches * _LAUNCH_MS + rounds * _HOST_ROUND_MS


DTYPES = {FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}
