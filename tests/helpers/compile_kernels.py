"""Compiles every kernel as its launches find it, without a device: prints a line of JSON for each program.

Usage: compile_kernels.py CAPABILITY fp32|fp16|bf16 aligned|odd

The project's own functions launch, on tensors without data (device `meta`); Triton chooses types, constants and hints
as for a real launch, and compiles. `aligned`: pointers and strides are multiples of 16, as with the sizes of published
models; `odd`: sizes are odd, and inputs are views that begin anywhere.

A program of its own, because a process either interprets Triton or compiles it.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import jit

from penstock.decoding.sizes import WfstSizes
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.state import empty_states
from penstock.kernels import blocks, capability
from penstock.kernels.chunk_step import attend_pages, convolve_chunk
from penstock.kernels.contracts import PredictorStates
from penstock.kernels.joint import FusedJoint
from penstock.kernels.ngram import FusedNgramLookup
from penstock.kernels.predictor import FusedPredictor
from penstock.scoring.automaton import Transitions
from tests.helpers.kernel_inputs import on_device, random_arcs, random_joint, random_predictor, random_predictor_states
from tests.helpers.wfst import random_graph

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Sizes of the nemotron model.
_LABELS, _JOINT, _WIDTH, _ROWS, _DURATIONS = 1024, 640, 640, 32, 5
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
META = torch.device("meta")


class _Device:
    """Stands in for a driver: what Triton asks before it compiles."""

    def __init__(self, number: int):
        self._number = number

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._number, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Phrases:
    """A phrase list without data."""

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        return Transitions(torch.empty_like(states, dtype=torch.float32), torch.empty_like(states))

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(states, dtype=torch.float32)


def launch_all(dtype: torch.dtype, odd: int) -> None:
    """Launches every kernel in each of its variants; those that do not depend on the type for float32 alone.

    odd: 0, or 1 to add to every size and to where inputs begin.
    """
    labels, joint, width, rows = (size + odd for size in (_LABELS, _JOINT, _WIDTH, _ROWS))

    def empty(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape[:-1], shape[-1] + odd, dtype=kind, device=META)[..., odd:]

    weights = on_device(random_joint(0, labels, joint, _DURATIONS, "relu", dtype), META)
    for activation, pairs, window in (("relu", rows, 1), ("tanh", 8 * rows, 4), ("sigmoid", 8 * rows, 1)):
        extra = empty(pairs, labels) if activation == "tanh" else None
        frames, predictions = empty(pairs, window, joint, kind=dtype), empty(pairs, joint, kind=dtype)
        FusedJoint(weights._replace(activation=activation))(frames, predictions, extra)
    predictor = random_predictor(0, labels, width, joint, 2, dtype)
    states = PredictorStates(*(empty(*s.shape, kind=dtype) for s in random_predictor_states(0, predictor, rows)))
    numbers = empty(rows, kind=torch.int64)
    FusedPredictor(on_device(predictor, META))(numbers, empty(rows, kind=torch.bool), states)
    if dtype != torch.float32:  # the encoder has kernels in 16 bit
        for frames, has_activation in ((1, True), (14, False)):
            _step_encoder(dtype, odd, frames, has_activation)
    if dtype == torch.float32:
        queries = torch.zeros(rows, 32 + odd, dtype=torch.int64)
        FusedNgramLookup(random_arcs(0, labels, 50, 6), 6)(queries, queries)
        _search_graph(rows // 2 - odd, odd)
        blocks._double_kernel[(1,)](empty(rows), count=8)


def _step_encoder(dtype: torch.dtype, odd: int, frames: int, has_activation: bool) -> None:
    """Attention and convolution of one layer."""
    heads, head_width, batch = 8, 128 - odd, 32
    width, taps, pages = heads * head_width, 9 + odd, 56 // frames + 1

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=META)

    slots = torch.empty(batch, dtype=torch.int64, device=META)
    qkv, by_distance = empty(batch * frames, 3 * width), empty(heads, batch * frames, 56 + 2 * frames - 1)
    attend_pages(qkv, by_distance, empty(64, 2, heads, pages, frames * head_width), slots, slots, slots)
    bias = None if odd else empty(width)
    gates, tails, weight = empty(batch * frames, 2 * width), empty(64, taps - 1, width), empty(taps, width)
    convolve_chunk(gates, tails, slots, weight, bias, has_activation)


def _search_graph(batch: int, odd: int) -> None:
    """A chunk of the graph search without boosts, with boosted words, and with phrases."""
    table = StreamBoosts(torch.empty(4, 16, device=META), torch.empty(batch, dtype=torch.int64, device=META), None)
    graph = DeviceGraph(random_graph(0), META)
    lengths, log_probs = table.table_rows, torch.empty(batch, 2, graph.vocabulary_size + 1, device=META)
    search = WfstSearch(graph, WfstSizes(2048 + odd), kernels=capability.FUSED)
    for boosts in (None, table, table._replace(phrases=_Phrases())):
        search.decode(log_probs, lengths, lengths > 0, empty_states(batch, search.sizes, META), boosts)


def resources(kernel: triton.compiler.CompiledKernel) -> dict[str, int]:
    """Registers of a thread, and bytes of its stack, where spilled registers go; shared bytes of a program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [tool, "--dump-resource-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, _ = map(int, _RESOURCES.search(listing).groups())
    return {"registers": registers, "stack": stack, "shared": kernel.metadata.shared}


def main(number: int, kind: str, hints: str) -> None:
    compiled: dict[int, dict] = {}
    run = jit.JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if id(kernel) not in compiled:
            compiled[id(kernel)] = {"kernel": self.__name__, **resources(kernel)}
        return kernel

    triton.runtime.driver.set_active(_Device(number))
    with (
        mock.patch.object(jit.JITFunction, "run", compile_only),
        mock.patch.object(capability, "why_impossible", lambda device: None),
    ):
        launch_all(_TYPES[kind], odd=int(hints == "odd"))
    for program in compiled.values():
        sys.stdout.write(json.dumps(program) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
