"""Calls of the CUDA driver and of NVRTC, each return code checked. The only module that imports cuda-bindings.

Works with cuda-bindings 12 and 13: calls that take edge data since 13 are used in that form with both. Without
cuda-bindings the module can be imported, and `IMPORT_ERROR` is set.
"""

import ctypes
from typing import Any

from penstock.graphs.program import CudaGraphError

IMPORT_ERROR: ImportError | None = None


try:
    from cuda.bindings import driver, nvrtc
except ImportError:
    try:  # cuda-python before 12.6
        from cuda import cuda as driver
        from cuda import nvrtc
    except ImportError as error:
        IMPORT_ERROR = error

_HINT = "(the modes `no_while_loops` and `no_graphs` do not need it)"


def check(result: tuple[Any, ...]) -> Any:
    """Returns what follows the return code: None, a value or a tuple; CudaGraphError with the name of an error."""
    code, *values = result
    if code.value != 0:
        raise CudaGraphError(f"CUDA: {code.name} {_HINT}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def driver_version() -> tuple[int, int]:
    """Returns the CUDA version of the driver as (major, minor)."""
    version = check(driver.cuDriverGetVersion())
    return version // 1000, version % 1000 // 10


def compiler_version() -> tuple[int, int]:
    """Returns the version of NVRTC as (major, minor); raises CudaGraphError without it."""
    major, minor = check(nvrtc.nvrtcVersion())
    return major, minor


def compile_kernel(source: bytes, name: bytes) -> Any:
    """Compiles CUDA C++ and returns the kernel `name`; it stays loaded in the current context."""
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


def launch_one_thread(kernel: Any, stream: int, handle: Any, address: int) -> None:
    """Launches `kernel` with one thread, for a conditional handle and a device address."""
    arguments = (int(handle), address), (ctypes.c_uint64, ctypes.c_void_p)
    check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))


def begin_capture(stream: int) -> None:
    """Starts capturing what this thread launches on `stream`; other threads are not restricted."""
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))


def begin_capture_to(stream: int, graph: Any) -> None:
    """Starts capturing `stream` into an existing graph, such as the body of a loop."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCaptureToGraph(stream, graph, None, None, 0, mode))


def end_capture(stream: int) -> Any:
    """Ends the capture and returns its graph."""
    return check(driver.cuStreamEndCapture(stream))


def abandon_capture(stream: int) -> None:
    """Ends a capture that failed, and ignores further errors, because the first one is being raised."""
    driver.cuStreamEndCapture(stream)


def add_while_node(stream: int, handle: Any) -> Any:
    """Adds a WHILE node after everything captured on `stream`, and returns the graph of its body."""
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


def new_condition(stream: int) -> Any:
    """Returns a handle for one conditional node of the graph that `stream` is being captured into.

    A kernel must set its value before the node runs.
    """
    graph, _ = _capture_info(stream)
    return check(driver.cuGraphConditionalHandleCreate(graph, check(driver.cuCtxGetCurrent()), 0, 0))


def instantiate(graph: Any) -> Any:
    """Returns an executable graph and destroys `graph`."""
    try:
        return check(driver.cuGraphInstantiate(graph, 0))
    finally:
        check(driver.cuGraphDestroy(graph))


def launch(executable: Any, stream: int) -> None:
    """Launches a graph on `stream`."""
    check(driver.cuGraphLaunch(executable, stream))


def destroy(executable: Any) -> None:
    """Frees an executable graph; ignores errors, because the context may be gone already."""
    driver.cuGraphExecDestroy(executable)


def _capture_info(stream: int) -> tuple[Any, list[Any]]:
    status, _, graph, dependencies, *_ = check(driver.cuStreamGetCaptureInfo(stream))
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise CudaGraphError(f"CUDA: the capture was invalidated: {status.name} {_HINT}")
    return graph, dependencies


def _with_edge_data(name: str) -> Any:
    return getattr(driver, name + "_v2", None) or getattr(driver, name)
