"""Every call to CUDA has its return code checked, and a failure says its name and how to do without."""

from collections.abc import Iterator

import pytest

from penstock.graphs import cuda_calls
from penstock.graphs.driver import GraphError
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with FakeCuda().installed() as cuda:
        yield cuda


def use(name: str, *arguments: object) -> object:
    return getattr(cuda_calls, name)(*arguments)


USES = {
    "driver_version": ((), "cuDriverGetVersion"),
    "compiler_version": ((), "nvrtcVersion"),
    "compile_kernel": ((b"source", b"name"), "nvrtcCreateProgram nvrtcCompileProgram nvrtcGetPTXSize nvrtcGetPTX "
                       "nvrtcDestroyProgram cuModuleLoadData cuModuleGetFunction"),
    "launch_one_thread": (("kernel", 5, ((1, int), (2, int))), "cuLaunchKernel"),
    "begin_capture": ((5,), "cuStreamBeginCapture"),
    "begin_capture_to": ((5, "graph"), "cuStreamBeginCaptureToGraph"),
    "end_capture": ((5,), "cuStreamEndCapture"),
    "captured_graph": ((5,), "cuStreamGetCaptureInfo"),
    "add_while_node": ((5, 7), "cuStreamGetCaptureInfo cuCtxGetCurrent cuGraphAddNode "
                       "cuStreamUpdateCaptureDependencies"),
    "new_condition": (("graph",), "cuCtxGetCurrent cuGraphConditionalHandleCreate"),
    "instantiate": (("graph",), "cuGraphInstantiate cuGraphDestroy"),
    "launch": (("executable", 5), "cuGraphLaunch"),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_what_is_called(cuda, name):
    arguments, calls = USES[name]
    use(name, *arguments)
    assert cuda.calls == calls.split()


@pytest.mark.parametrize(("name", "call"), [(name, call) for name in USES for call in USES[name][1].split()])
def test_every_failure_is_raised_by_its_name(cuda, name, call):
    cuda.fails = call
    with pytest.raises(GraphError, match=f"ERROR_OF_{call} .*`no_while_loops` and `no_graphs`"):
        use(name, *USES[name][0])


def test_values_come_back(cuda):
    assert use("driver_version") == (13, 0)
    assert use("compile_kernel", b"source", b"name") == "kernel"
    assert use("captured_graph", 5) == "graph"
    assert use("add_while_node", 5, 7) == "body"
    assert use("instantiate", "graph") == "executable"


def test_a_capture_that_ended_early_is_an_error(cuda):
    cuda.is_capturing = False
    with pytest.raises(GraphError, match="INVALIDATED"):
        use("captured_graph", 5)


def test_what_is_left_of_a_failed_capture_is_ignored(cuda):
    cuda.fails = "cuStreamEndCapture"
    use("abandon_capture", 5, True)
    assert cuda.calls == ["cuStreamEndCapture"]


@pytest.mark.parametrize(("owns_graph", "calls"), [(True, ["cuGraphDestroy"]), (False, [])])
def test_the_graph_of_a_failed_capture_is_destroyed_by_its_owner(cuda, owns_graph, calls):
    use("abandon_capture", 5, owns_graph)
    assert cuda.calls == ["cuStreamEndCapture", *calls]
