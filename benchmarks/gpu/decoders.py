"""Searches on random encoder output: greedy by both kinds of kernels, boosted, and ALSD++, under every driver."""

import argparse
import math
import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu import predictions
from benchmarks.gpu.recorder import Recorder, run_program
from benchmarks.measure import Figures, Plan, measure, set_up
from benchmarks.random_models import KINDS, RNNT, TDT
from benchmarks.systems import PRECOMPUTED, System, Unavailable, Variant, split_chunks
from benchmarks.workload import RandomSizes, Workload, random_workload
from penstock.kernels.capability import FUSED, TORCH
from penstock.model.config import AttentionContext

LEFT = 56
STREAMS = (32, 256, 1, 64)
"""The most important first."""
DECODERS, BEAM_SIZE = ("label-looping", "boosted", "alsd"), 6
_CHUNKS, _REPEATS = 12, 3


def run(recorder: Recorder, chosen: argparse.Namespace) -> None:
    """One kind of model with chunks of one length."""
    streams = (1, 2) if chosen.tiny else STREAMS
    frames = chosen.right + 1
    chunks = 2 if chosen.tiny else _CHUNKS
    sizes = RandomSizes("small" if chosen.tiny else "large")
    kernels = (TORCH, FUSED) if torch.device(chosen.device).type == "cuda" else (TORCH,)
    repeats = 1 if chosen.tiny else _REPEATS
    common = {"kind": chosen.kind, "chunk_frames": frames}

    # Streams of whole chunks; a frame has 80 ms.
    context, seconds = AttentionContext(LEFT, chosen.right), 0.08 * frames * chunks
    workload = random_workload(chosen.kind, sizes, max(streams), seconds, context, chosen.device)

    def measure_decoder(decoder: str) -> None:
        plan = Plan(streams, [BEAM_SIZE], [decoder], chosen.device, repeats, kernels=kernels)
        began_s, before = time.perf_counter(), used_mib(chosen.device)
        systems = set_up(workload, plan)  # captures all graphs
        taken_s, mib = time.perf_counter() - began_s, used_mib(chosen.device) - before
        recorder.add("decoder set-up", {**common, "decoder": decoder}, taken_s, "s", None, device_mib=mib)
        for one in systems.unavailable:
            record_unavailable(recorder, common, one)
        count_operations(recorder, common, workload, systems.available, frames)
        known = len(systems.unavailable)
        for figures in measure(workload, systems, plan):
            for figure in figures:
                record(recorder, common, figure, math.ceil(workload.encoded.shape[1] / frames))
        for one in systems.unavailable[known:]:
            record_unavailable(recorder, common, one)

    for decoder in DECODERS:
        recorder.attempt("decoders", {**common, "decoder": decoder}, lambda decoder=decoder: measure_decoder(decoder))


def used_mib(device: str) -> float:
    """Memory of the GPU in use, by all programs."""
    if torch.device(device).type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20


def record(recorder: Recorder, common: dict[str, Any], figure: Figures, chunks: int) -> None:
    """The time of a chunk, the copy of its labels to the host included."""
    variant = figure.variant
    if variant.projections != PRECOMPUTED:
        return
    predicted = predictions.decoder_chunk_ms(
        variant.decoder, variant.kernels, variant.driver, common["chunk_frames"], common["kind"] == TDT
    )
    case = {**common, **case_of(variant), "streams": figure.batch}
    more = {"labels": figure.labels, "same_labels": figure.streams_as_label_looping}
    recorder.add("decoder chunk", case, 1e3 * figure.decoder.median / chunks, "ms", predicted, **more)


def record_unavailable(recorder: Recorder, common: dict[str, Any], one: Unavailable) -> None:
    """Why a variant has no times."""
    recorder.skip("decoder chunk", {**common, **case_of(one.variant)}, one.reason)


def case_of(variant: Variant) -> dict[str, Any]:
    """What distinguishes a variant here."""
    return {"decoder": variant.decoder, "kernels": variant.kernels, "driver": variant.driver}


class OperationCount(TorchDispatchMode):
    """Counts operations of torch that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts what is not a view."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count_operations(
    recorder: Recorder, common: dict[str, Any], workload: Workload, systems: list[System], frames: int
) -> None:
    """Operations of the first chunk of each search without graphs, the kernels of the Triton language left out."""
    (chunk, *_) = split_chunks(workload.encoded, frames)
    for system in systems:
        variant = system.variant
        if variant.driver != "no_graphs" or variant.projections != PRECOMPUTED:
            continue
        with OperationCount() as counted:
            system.decode([chunk])
        case = {**common, "decoder": variant.decoder, "kernels": variant.kernels, "streams": len(chunk.lengths)}
        recorder.add("operations of a chunk", case, counted.count, "operations", None)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", choices=KINDS, default=RNNT)
        parser.add_argument("--right", type=int, choices=(0, 3, 13), default=0, help="right context, encoder frames")

    return run_program(arguments, "Searches on random encoder output.", run, add_options)


if __name__ == "__main__":
    sys.exit(main())
