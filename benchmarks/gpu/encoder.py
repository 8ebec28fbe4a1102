"""The encoder step of a 24-layer model of width 1024: float32, bfloat16 and float16, launched singly and captured."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu import predictions
from benchmarks.gpu.predictions import FP32
from benchmarks.gpu.recorder import Recorder, median_ms, run_program
from benchmarks.random_models import ENCODERS, RandomEncoder
from penstock.encoder.encoder import TORCH, StreamingEncoder
from penstock.model.config import AttentionContext

LEFT, RIGHTS = 56, (0, 3, 13)
STREAMS = (16, 64, 256, 512, 1024)
PROFILED = ((0, 512), (13, 512))
"""Right context and streams of the profiles."""
_BUDGET_S = 0.6
_PROFILED_KERNELS, _PROFILED_STEPS = 20, 5
_ERROR_STREAMS, _ERROR_STEPS = 4, 8
_FACTOR = 8


class Step:
    """One step of `streams` streams in their steady state: all caches full of random values."""

    def __init__(self, size: str, context: AttentionContext, streams: int, dtype: str, device: str):
        source = RandomEncoder(ENCODERS[size], context, device=device)
        self.encoder = StreamingEncoder(source, context, streams, device, predictions.DTYPES[dtype], TORCH)
        state = self.encoder.state
        state.kv_pages.normal_()
        state.conv_tails.normal_()
        state.chunks_seen.fill_(10 * state.pages_per_slot)
        frames = _FACTOR * context.chunk_encoder_frames
        self.slots = torch.arange(streams, device=device)
        self.mel = source.mel(1, streams, frames)[0]
        self.valid = torch.full((streams,), frames, device=device)

    def resized(self, streams: int) -> "Callable[[], object]":
        """A step of the first `streams` streams."""
        slots, mel, valid = self.slots[:streams], self.mel[:streams], self.valid[:streams]
        return lambda: self.encoder.step(slots, mel, valid)


def measure(recorder: Recorder, chosen: argparse.Namespace) -> None:
    """One type in all contexts and batch sizes, then its error."""
    size, streams = ("small", (1, 2)) if chosen.tiny else ("xlarge", STREAMS)
    rights = RIGHTS[:2] if chosen.tiny else RIGHTS
    budget_s = 0.0 if chosen.tiny else _BUDGET_S
    if chosen.dtype != FP32:
        case = {"dtype": chosen.dtype}
        recorder.attempt("encoder error", case, lambda: measure_error(recorder, chosen.device, case, size))
    for right in rights:
        context = AttentionContext(LEFT, right)

        def measure_context(context: AttentionContext = context, right: int = right) -> None:
            step = Step(size, context, max(streams), chosen.dtype, chosen.device)
            for count in streams:
                for is_captured in (False, True):
                    case = {"context": f"[{LEFT},{right}]", "streams": count, "dtype": chosen.dtype,
                            "launch": "captured" if is_captured else "eager"}  # fmt: skip
                    task = step.resized(count)

                    def measure_case(case: dict = case, task: Callable = task, count: int = count) -> None:
                        measure_step(recorder, chosen.device, case, task, budget_s, count, right)

                    recorder.attempt("encoder step", case, measure_case)
                if (right, count) in PROFILED or chosen.tiny:
                    case = {"context": f"[{LEFT},{right}]", "streams": count, "dtype": chosen.dtype}
                    profiled = step.resized(count)
                    recorder.attempt(
                        "encoder profile", case, lambda case=case, t=profiled: profile(recorder, chosen.device, case, t)
                    )

        recorder.attempt("encoder", {"context": f"[{LEFT},{right}]", "dtype": chosen.dtype}, measure_context)


def measure_step(
    recorder: Recorder, device: str, case: dict, step: Callable[[], object], budget_s: float, streams: int, right: int
) -> None:
    """The time of a step."""
    is_captured = case["launch"] == "captured"
    if is_captured:
        if torch.device(device).type != "cuda":
            recorder.skip("encoder step", case, "no CUDA device")
            return
        step = captured(step)
    ms = median_ms(step, device, budget_s)
    predicted = predictions.encoder_step_ms(streams, right + 1, case["dtype"], is_captured)
    recorder.add("encoder step", case, ms, "ms", predicted)


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a graph, after it has run on the stream of the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def profile(recorder: Recorder, device: str, case: dict, step: Callable[[], object]) -> None:
    """Which kernels take the time of a step; milliseconds per step."""
    is_cuda = torch.device(device).type == "cuda"
    activity = torch.profiler.ProfilerActivity
    step()
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA] if is_cuda else [activity.CPU]) as found:
        for _ in range(_PROFILED_STEPS):
            step()
        if is_cuda:
            torch.cuda.synchronize()
    attribute = "self_device_time_total" if is_cuda else "self_cpu_time_total"
    rows = [row for row in found.key_averages() if getattr(row, attribute) > 0]
    rows.sort(key=lambda row: -getattr(row, attribute))

    def table(row: Any) -> dict[str, Any]:
        ms = getattr(row, attribute) / 1e3 / _PROFILED_STEPS
        return {"kernel": row.key[:120], "ms": round(ms, 5), "calls": row.count / _PROFILED_STEPS}

    total = sum(getattr(row, attribute) for row in rows) / 1e3 / _PROFILED_STEPS
    recorder.add("encoder profile", case, total, "ms", None, kernels=[table(row) for row in rows[:_PROFILED_KERNELS]])


def measure_error(recorder: Recorder, device: str, case: dict, size: str) -> None:
    """||difference|| / ||reference|| of frames to float32, same weights and mel, from the start of a stream on."""
    context = AttentionContext(LEFT, 3)
    frames = _FACTOR * context.chunk_encoder_frames
    found = []
    for dtype in (FP32, case["dtype"]):
        source = RandomEncoder(ENCODERS[size], context, device=device)
        encoder = StreamingEncoder(source, context, _ERROR_STREAMS, device, predictions.DTYPES[dtype], TORCH)
        slots = torch.arange(_ERROR_STREAMS, device=device)
        encoder.open(slots)
        mels = source.mel(_ERROR_STEPS, _ERROR_STREAMS, frames)
        valid = torch.full((_ERROR_STREAMS,), frames, device=device)
        found.append(torch.cat([encoder.step(slots, mel, valid).frames.float() for mel in mels], dim=1))
    reference, frames_16 = found
    error = float((frames_16 - reference).norm() / reference.norm())
    if not error < 1.0:  # a NaN too
        raise RuntimeError(f"relative error {error}")
    recorder.add("encoder error", case, error, "of the norm", predictions.RELATIVE_ERROR[case["dtype"]])


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dtype", choices=tuple(predictions.DTYPES), default=FP32)

    return run_program(arguments, "The encoder step of a large model.", measure, add_options)


if __name__ == "__main__":
    sys.exit(main())
