"""The order of the calls that build a graph with WHILE nodes, and what is left behind when a step fails in a capture.

Without a GPU: torch's streams and pools are replaced too.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from penstock.graphs.full_graph import CudaGraphBuilder, FullGraphDriver
from penstock.graphs.program import CudaGraphError, Program, While
from tests.helpers.fake_cuda import FakeCuda

FLAGS = torch.zeros(2, dtype=torch.bool)


class FakeStream:
    made = 0

    def __init__(self, device=None):
        FakeStream.made += 1
        self.cuda_stream, self.device = FakeStream.made, device

    def wait_stream(self, other) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def cuda(monkeypatch) -> Iterator[FakeCuda]:
    for name in ("device", "stream", "use_mem_pool"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: FakeStream())
    monkeypatch.setattr(torch.cuda, "MemPool", SimpleNamespace)
    with FakeCuda().installed() as cuda:
        yield cuda


def builder(cuda: FakeCuda) -> CudaGraphBuilder:
    builder = CudaGraphBuilder(torch.device("cuda"))
    cuda.calls.clear()
    return builder


def noting(cuda: FakeCuda, name: str):
    return lambda: cuda.calls.append(name)


LOOP_BEGINS = ["cuStreamGetCaptureInfo", "cuCtxGetCurrent", "cuGraphConditionalHandleCreate", "cuLaunchKernel",
               "cuStreamGetCaptureInfo", "cuCtxGetCurrent", "cuGraphAddNode", "cuStreamUpdateCaptureDependencies",
               "cuStreamBeginCaptureToGraph"]  # fmt: skip
LOOP_ENDS = ["cuLaunchKernel", "cuStreamEndCapture"]


def test_nested_loops(cuda):
    inner = While(0, (noting(cuda, "inner"),))
    program = Program(FLAGS, (noting(cuda, "begin"), While(1, (noting(cuda, "outer"), inner)), noting(cuda, "end")))
    run = FullGraphDriver(builder(cuda)).prepare(program)
    captured = cuda.calls[cuda.calls.index("cuStreamBeginCapture") :]
    expected = ["cuStreamBeginCapture", "begin", *LOOP_BEGINS, "outer", *LOOP_BEGINS, "inner", *LOOP_ENDS, *LOOP_ENDS]
    assert captured == [*expected, "end", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"]
    cuda.calls.clear()
    run()
    assert cuda.calls == ["cuGraphLaunch"]


def test_warm_up_runs_every_step_on_every_stream_that_captures(cuda):
    program = Program(FLAGS, (noting(cuda, "step"), While(0, (noting(cuda, "inside"),))))
    FullGraphDriver(builder(cuda)).prepare(program)
    before = cuda.calls[: cuda.calls.index("cuStreamBeginCapture")]
    assert before == ["step", "inside"] * 4  # two rounds on each of two streams


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_that_fails_ends_the_capture(cuda, depth):
    def fail() -> None:
        if "cuStreamBeginCapture" in cuda.calls:
            raise RuntimeError("a step failed")

    body = (fail,)
    for _ in range(depth):
        body = (While(0, body),)
    driver = FullGraphDriver(builder(cuda))
    with pytest.raises(RuntimeError, match="a step failed"):
        driver.prepare(Program(FLAGS, body))
    begun = [call for call in cuda.calls if call.startswith("cuStreamBeginCapture")]
    assert len(begun) == depth + 1
    assert cuda.calls.count("cuStreamEndCapture") == 1, "those of loops are left: the driver would crash"
    cuda.calls.clear()
    program = Program(FLAGS, (noting(cuda, "begin"), While(0, (noting(cuda, "again"),))))
    if depth:
        with pytest.raises(CudaGraphError, match="this process cannot capture again"):
            driver.prepare(program)
        return
    run = driver.prepare(program)
    assert cuda.calls[-3:] == ["cuStreamEndCapture", "cuGraphInstantiate", "cuGraphDestroy"]
    run()


@pytest.mark.parametrize("call", ["cuStreamBeginCaptureToGraph", "cuGraphAddNode", "cuStreamEndCapture"])
def test_a_call_that_fails_names_itself(cuda, call):
    driver = FullGraphDriver(builder(cuda))
    cuda.fails = call
    with pytest.raises(CudaGraphError, match=call):
        driver.prepare(Program(FLAGS, (While(0, (noting(cuda, "step"),)),)))


def test_nothing_was_captured(cuda):
    with pytest.raises(CudaGraphError, match="no graph"):
        builder(cuda).finish()


def test_the_condition_kernel_is_compiled_before_any_capture(cuda):
    """NVRTC may not be called inside one."""
    program = Program(FLAGS, (noting(cuda, "step"), While(0, (noting(cuda, "inside"),))))
    driver = FullGraphDriver(CudaGraphBuilder(torch.device("cuda")))
    for _ in range(2):
        driver.prepare(program)
    compiled = [place for place, name in enumerate(cuda.calls) if name.startswith(("nvrtc", "cuModule"))]
    assert compiled and max(compiled) < cuda.calls.index("cuStreamBeginCapture")
