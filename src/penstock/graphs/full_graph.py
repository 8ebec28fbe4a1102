"""A whole program as one CUDA graph: its loops become conditional WHILE nodes, which may be nested.

A run is one launch and never waits for the host. A loop is a kernel that passes a flag to `cudaGraphSetConditional`,
then a WHILE node whose body is captured on a stream of its own and ends with the same kernel (arXiv 2406.03791,
section 3.2, figure 3).
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.graphs import cuda_calls
from penstock.graphs.program import (
    CapturedProgram,
    CudaGraphError,
    Program,
    Runner,
    Step,
    While,
    steps_with_depth,
    warm_up,
)

# NVRTC has no CUDA headers here, so the declarations of the device runtime are repeated.
_SET_CONDITION = rb"""
typedef __device_builtin__ unsigned long long cudaGraphConditionalHandle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned int);
extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const bool *flag) {
    cudaGraphSetConditional(handle, *flag ? 1 : 0);
}
"""


class FullGraphDriver:
    """Captures a program and its loops as one graph."""

    name = "full_graph"

    def __init__(self, builder: "CudaGraphBuilder"):
        self._builder = builder

    def prepare(self, program: Program) -> Runner:
        """Captures the whole program. After one that fails inside a loop, CudaGraphError: there can be no other."""
        self._builder.warm_up(program)
        with self._builder.graph():
            self._capture(program.body, program.flags)
        return CapturedProgram(program, self._builder.finish())

    def _capture(self, body: tuple[Step | While, ...], flags: torch.Tensor) -> None:
        for item in body:
            if isinstance(item, While):
                with self._builder.loop(flags[item.flag]):
                    self._capture(item.body, flags)
            else:
                item()


class CudaGraphBuilder:
    """Captures graphs on one device with cuda-bindings, one after another.

    All graphs share one memory pool for intermediate tensors, so they must run one after another.
    """

    def __init__(self, device: torch.device):
        self._device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # creates the CUDA context
            self._kernel = cuda_calls.compile_kernel(_SET_CONDITION, b"set_condition")
            self._pool = torch.cuda.MemPool()
        self._streams: list[torch.cuda.Stream] = []  # one per depth of loops
        self._depth = 0
        self._graph: Any = None
        self._is_broken = False

    def warm_up(self, program: Program) -> None:
        """Runs every step on every stream that captures steps: libraries keep one workspace per stream."""
        steps = list(steps_with_depth(program.body))
        while len(self._streams) <= max(depth for depth, _ in steps):
            self._streams.append(torch.cuda.Stream(self._device))
        with torch.cuda.device(self._device):
            for stream in self._streams:
                warm_up([step for _, step in steps], stream)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Captures what is launched inside, without running it."""
        if self._is_broken:
            raise CudaGraphError("an earlier capture failed inside a loop, and this process cannot capture again")
        gc.collect()  # freeing memory during a capture could break it
        self._depth, self._graph = 0, None
        stream = self._streams[0].cuda_stream
        # A loop's body is captured on another stream, which torch does not take for a part of this capture. Therefore
        # everything that this thread allocates meanwhile comes from the pool, where it is never reused.
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.use_mem_pool(self._pool):
            cuda_calls.begin_capture(stream)
            try:
                with torch.cuda.stream(self._streams[0]):
                    yield
            except BaseException:
                cuda_calls.abandon_capture(stream)
                raise
            self._graph = cuda_calls.end_capture(stream)

    @contextmanager
    def loop(self, flag: torch.Tensor) -> Iterator[None]:
        """Inside `graph` or another loop: repeats what is launched inside while `flag` [] bool is True."""
        outside = self._streams[self._depth].cuda_stream
        handle = cuda_calls.new_condition(outside)
        self._set_condition(outside, handle, flag)
        body = cuda_calls.add_while_node(outside, handle)
        inside = self._streams[self._depth + 1]
        cuda_calls.begin_capture_to(inside.cuda_stream, body)
        self._depth += 1
        try:
            with torch.cuda.stream(inside):
                yield
                self._set_condition(inside.cuda_stream, handle, flag)
            cuda_calls.end_capture(inside.cuda_stream)
        except BaseException:
            self._is_broken = True  # the driver (580) crashes if a capture that it has invalidated is ended: it is left
            raise
        finally:
            self._depth -= 1

    def finish(self) -> Runner:
        """Returns the graph captured last, ready to run."""
        if self._graph is None:
            raise CudaGraphError("no graph was captured")
        graph, self._graph = self._graph, None
        return _ExecutableGraph(cuda_calls.instantiate(graph), self._device, self._pool)

    def _set_condition(self, stream: int, handle: Any, flag: torch.Tensor) -> None:
        cuda_calls.launch_one_thread(self._kernel, stream, handle, flag.data_ptr())


class _ExecutableGraph:
    def __init__(self, executable: Any, device: torch.device, pool: torch.cuda.MemPool):
        self._executable, self._device = executable, device
        self._pool = pool  # the graph's memory lives as long as the graph
        weakref.finalize(self, cuda_calls.destroy, executable)

    def __call__(self) -> None:
        with torch.cuda.device(self._device):
            cuda_calls.launch(self._executable, torch.cuda.current_stream().cuda_stream)
