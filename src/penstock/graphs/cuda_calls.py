"""Calls of the CUDA driver and the run-time compiler, each return code checked. All that imports cuda-bindings.

Covers cuda-bindings 12 and 13: calls whose signature grew edge data in 13 are taken in that form from both.
"""

import ctypes
from typing import Any

from penstock.graphs.driver import GraphError

try:
    from cuda.bindings import driver, nvrtc
except ImportError:  # cuda-python before 12.6
    from cuda import cuda as driver
    from cuda import nvrtc

_EAGER_HINT = "(the option `eager` or `staged` does without)"


def check(answer: tuple) -> Any:
    """What a call returned behind its code: None, a value or a tuple; GraphError with the code's name if it failed."""
    code, *values = answer
    if code.value != 0:
        raise GraphError(f"CUDA: {code.name} {_EAGER_HINT}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def driver_version() -> tuple[int, int]:
    """CUDA version of the driver."""
    version = check(driver.cuDriverGetVersion())
    return version // 1000, version % 1000 // 10


def compiler_version() -> tuple[int, int]:
    """CUDA version of the run-time compiler; fails where there is none."""
    return check(nvrtc.nvrtcVersion())


def compile_kernel(source: bytes, name: bytes) -> Any:
    """Compiles CUDA C++ and returns the kernel `name`, loaded into the current context for good."""
    program = check(nvrtc.nvrtcCreateProgram(source, name + b".cu", 0, [], []))
    try:
        check(nvrtc.nvrtcCompileProgram(program, 0, []))
        ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
        check(nvrtc.nvrtcGetPTX(program, ptx))
    finally:
        check(nvrtc.nvrtcDestroyProgram(program))
    image = ctypes.create_string_buffer(ptx)
    module = check(driver.cuModuleLoadData(ctypes.addressof(image)))
    return check(driver.cuModuleGetFunction(module, name))


def launch_one_thread(kernel: Any, stream: int, arguments: tuple[tuple[int, type], ...]) -> None:
    """Launches `kernel` with one thread; arguments: (value, ctypes type) each."""
    values, types = zip(*arguments, strict=True)
    check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))


def begin_capture(stream: int) -> None:
    """What this thread puts on `stream` is captured from now on; other threads may do what they like."""
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))


def begin_capture_to(stream: int, graph: Any) -> None:
    """The same into a graph that exists, such as a loop's body."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCaptureToGraph(stream, graph, None, None, 0, mode))


def end_capture(stream: int) -> Any:
    """The graph captured."""
    return check(driver.cuStreamEndCapture(stream))


def abandon_capture(stream: int, owns_graph: bool) -> None:
    """Ends a capture that failed, and destroys its graph where that is ours to do.

    There is nobody left to tell of another failure. A capture that CUDA itself gave up has no graph.
    """
    status, *graph = driver.cuStreamEndCapture(stream)
    if owns_graph and status.value == 0 and graph[0] is not None:
        driver.cuGraphDestroy(graph[0])


def captured_graph(stream: int) -> Any:
    """The graph that `stream` is being captured into."""
    return _capture_info(stream)[0]


def add_while_node(stream: int, handle: Any) -> Any:
    """Adds a WHILE node behind all that was captured on `stream`, and returns the graph of its body."""
    graph, dependencies = _capture_info(stream)
    parameters = driver.CUgraphNodeParams()
    parameters.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    parameters.conditional.handle = handle
    parameters.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    parameters.conditional.size = 1
    parameters.conditional.ctx = check(driver.cuCtxGetCurrent())
    node = check(_with_edge_data("cuGraphAddNode")(graph, dependencies, None, len(dependencies), parameters))
    only_this = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    check(_with_edge_data("cuStreamUpdateCaptureDependencies")(stream, [node], None, 1, int(only_this)))
    return parameters.conditional.phGraph_out[0]


def new_condition(graph: Any) -> Any:
    """A handle for one conditional node of `graph`; its value must be set by a kernel before the node is reached."""
    return check(driver.cuGraphConditionalHandleCreate(graph, check(driver.cuCtxGetCurrent()), 0, 0))


def instantiate(graph: Any) -> Any:
    """An executable graph; `graph` is no longer needed afterwards and is destroyed."""
    try:
        return check(driver.cuGraphInstantiate(graph, 0))
    finally:
        check(driver.cuGraphDestroy(graph))


def launch(executable: Any, stream: int) -> None:
    """Launches a graph in the order of `stream`."""
    check(driver.cuGraphLaunch(executable, stream))


def destroy(executable: Any) -> None:
    """Frees an executable graph; the context may be gone already."""
    driver.cuGraphExecDestroy(executable)


def handle_argument(handle: Any) -> tuple[int, type]:
    """A conditional handle as a kernel's argument."""
    return int(handle), ctypes.c_uint64


def pointer_argument(address: int) -> tuple[int, type]:
    """An address on the device as a kernel's argument."""
    return address, ctypes.c_void_p


def _capture_info(stream: int) -> tuple[Any, list]:
    status, _, graph, dependencies, *_ = check(driver.cuStreamGetCaptureInfo(stream))
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise GraphError(f"CUDA: the capture ended early: {status.name} {_EAGER_HINT}")
    return graph, dependencies


def _with_edge_data(name: str) -> Any:
    return getattr(driver, name + "_v2", None) or getattr(driver, name)
