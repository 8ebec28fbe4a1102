"""Builds CUDA graphs with conditional WHILE nodes by stream capture, with cuda-bindings.

A loop is a small kernel that hands a flag to `cudaGraphSetConditional`, then a WHILE node whose body is captured on a
stream of its own and ends with the same kernel (arXiv 2406.03791, section 3.2, figure 3). Knows no search.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.graphs import cuda_calls
from penstock.graphs.driver import GraphError, Runner
from penstock.graphs.program import Program, steps_with_depth
from penstock.graphs.warm_up import warm_up

# The run-time compiler has no headers here: what the device runtime provides is declared.
_SET_CONDITION = rb"""
typedef __device_builtin__ unsigned long long cudaGraphConditionalHandle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned int);
extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const bool *flag) {
    cudaGraphSetConditional(handle, *flag ? 1 : 0);
}
"""


class CudaGraphBuilder:
    """Graphs of one device. All share one memory pool for what lies between steps: they must run one after another."""

    def __init__(self, device: torch.device):
        self._device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # there is a context now
            self._kernel = cuda_calls.compile_kernel(_SET_CONDITION, b"set_condition")
            self._pool = torch.cuda.MemPool()
        self._streams: list[torch.cuda.Stream] = []  # by depth of loops
        self._depth = 0
        self._graph = None

    def warm_up(self, program: Program) -> None:
        """On each stream that the steps will be captured on: libraries keep a workspace for each."""
        steps = list(steps_with_depth(program.body))
        while len(self._streams) <= max(depth for depth, _ in steps):
            self._streams.append(torch.cuda.Stream(self._device))
        with torch.cuda.device(self._device):
            for stream in self._streams:
                warm_up([step for _, step in steps], stream)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Captures what happens inside."""
        gc.collect()  # what is freed during a capture could break it
        self._depth, self._graph = 0, None
        stream = self._streams[0].cuda_stream
        # A body is captured on another stream, which torch does not know to be part of this capture: so all that this
        # thread allocates meanwhile goes into the pool, where nobody else will be given it.
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.use_mem_pool(self._pool):
            cuda_calls.begin_capture(stream)
            with torch.cuda.stream(self._streams[0]), _abandoned_on_error(stream, owns_graph=True):
                yield
            self._graph = cuda_calls.end_capture(stream)

    @contextmanager
    def loop(self, flag: torch.Tensor) -> Iterator[None]:
        """Captures what happens inside as the body of a WHILE node."""
        outside = self._streams[self._depth].cuda_stream
        handle = cuda_calls.new_condition(cuda_calls.captured_graph(outside))
        self._set_condition(outside, handle, flag)
        body = cuda_calls.add_while_node(outside, handle)
        inside = self._streams[self._depth + 1]
        cuda_calls.begin_capture_to(inside.cuda_stream, body)
        self._depth += 1
        try:
            with torch.cuda.stream(inside), _abandoned_on_error(inside.cuda_stream):
                yield
                self._set_condition(inside.cuda_stream, handle, flag)
            cuda_calls.end_capture(inside.cuda_stream)
        finally:
            self._depth -= 1

    def finish(self) -> Runner:
        """Makes the graph captured last executable."""
        if self._graph is None:
            raise GraphError("no graph was captured")
        graph, self._graph = self._graph, None
        return _ExecutableGraph(cuda_calls.instantiate(graph), self._device, self._pool)

    def _set_condition(self, stream: int, handle, flag: torch.Tensor) -> None:
        arguments = (cuda_calls.handle_argument(handle), cuda_calls.pointer_argument(flag.data_ptr()))
        cuda_calls.launch_one_thread(self._kernel, stream, arguments)


class _ExecutableGraph:
    def __init__(self, executable, device: torch.device, pool):
        self._executable, self._device = executable, device
        self._pool = pool  # the graph's memory lives as long as the graph
        weakref.finalize(self, cuda_calls.destroy, executable)

    def __call__(self) -> None:
        with torch.cuda.device(self._device):
            cuda_calls.launch(self._executable, torch.cuda.current_stream().cuda_stream)


@contextmanager
def _abandoned_on_error(stream: int, owns_graph: bool = False) -> Iterator[None]:
    """owns_graph: False for a loop's body, which belongs to the graph around it."""
    try:
        yield
    except BaseException:
        cuda_calls.abandon_capture(stream, owns_graph)
        raise
