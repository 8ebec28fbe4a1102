"""Which driver is selected, why, and what is rejected; the trial that a driver must pass."""

import logging
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from penstock.errors import PenstockError
from penstock.graphs import cuda_calls
from penstock.graphs import select as cuda_graphs
from penstock.graphs.driver import EagerDriver, GraphError
from penstock.graphs.program import Program, steps_with_depth
from penstock.graphs.select import check_mode, select_driver, try_out
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def gpu(monkeypatch) -> Iterator[FakeCuda]:
    """A machine that seems to have a GPU, with drivers that are not built."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_graphs, "_make", lambda name, device: Named(name))
    monkeypatch.setattr(cuda_graphs, "try_out", lambda driver, device: None)
    with FakeCuda().installed() as cuda:
        yield cuda


class Named(EagerDriver):
    def __init__(self, name: str):
        self.name = name


@pytest.mark.parametrize("option", ["auto", "no_graphs"])
def test_without_a_gpu_it_is_eager(option):
    choice = select_driver(option, "cpu")
    assert isinstance(choice.driver, EagerDriver)
    assert choice.reason == {"auto": "cpu is not a CUDA device", "no_graphs": "configured"}[option]


@pytest.mark.parametrize("option", ["no_while_loops", "full_graph"])
def test_graphs_on_the_cpu_are_rejected_by_name(option):
    with pytest.raises(PenstockError, match=f"'{option}' are not possible on cpu: cpu is not a CUDA device"):
        select_driver(option, "cpu")


@pytest.mark.parametrize("option", ["graph", "", "AUTO"])
def test_an_unknown_option_is_rejected_by_name(option):
    for check in (check_mode, lambda option: select_driver(option, "cpu")):
        with pytest.raises(PenstockError, match=f"'{option}'.*auto, full_graph, no_while_loops, no_graphs"):
            check(option)


def test_a_cuda_device_that_torch_does_not_find(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_driver("auto", "cuda").reason == "torch finds no CUDA device"
    with pytest.raises(PenstockError, match="torch finds no CUDA device"):
        select_driver("no_while_loops", "cuda:0")


@pytest.mark.parametrize(
    ("option", "expected"), [("auto", "full_graph")] + [(mode, mode) for mode in cuda_graphs.MODES[1:]]
)
def test_on_a_gpu_that_can(gpu, option, expected):
    assert select_driver(option, "cuda").driver.name == expected


def test_an_old_driver_has_no_conditional_nodes(gpu):
    gpu.answers["cuDriverGetVersion"] = (12030,)
    choice = select_driver("auto", "cuda")
    assert choice.driver.name == "no_while_loops"
    assert choice.reason == "no conditional nodes: the driver has CUDA 12.3, conditional nodes need 12.6"
    with pytest.raises(PenstockError, match=r"'full_graph' are not possible on cuda: the driver has CUDA 12.3"):
        select_driver("full_graph", "cuda")


@pytest.mark.parametrize("call", ["cuDriverGetVersion", "nvrtcVersion"])
def test_broken_libraries_are_named(gpu, call):
    gpu.fails = call
    assert f"ERROR_OF_{call}" in select_driver("auto", "cuda").reason


def test_missing_bindings_are_named(gpu, monkeypatch):
    monkeypatch.setattr(cuda_calls, "IMPORT_ERROR", ImportError("No module named 'cuda'"))
    choice = select_driver("auto", "cuda")
    assert choice.driver.name == "no_while_loops"
    assert "the package cuda-bindings is missing (No module named 'cuda')" in choice.reason


def test_auto_falls_back_if_a_driver_cannot_start(gpu, monkeypatch):
    def make(name: str, device: torch.device) -> Named:
        if name == "full_graph":
            raise GraphError("CUDA: NVRTC_ERROR_COMPILATION")
        return Named(name)

    monkeypatch.setattr(cuda_graphs, "_make", make)
    choice = select_driver("auto", "cuda")
    assert (choice.driver.name, "NVRTC_ERROR_COMPILATION" in choice.reason) == ("no_while_loops", True)
    with pytest.raises(GraphError):
        select_driver("full_graph", "cuda")


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError, TypeError])
def test_auto_falls_back_if_a_driver_fails_its_trial(gpu, monkeypatch, kind):
    def try_out(driver: Named, device: torch.device) -> None:
        raise kind("CUDA error: an illegal memory access")

    monkeypatch.setattr(cuda_graphs, "try_out", try_out)
    choice = select_driver("auto", "cuda")
    assert (choice.driver.name, "illegal memory access" in choice.reason) == ("no_while_loops", True)
    assert select_driver("full_graph", "cuda").driver.name == "full_graph", "a configured mode shows its own error"


def test_auto_falls_back_if_a_driver_fails_with_a_real_program(gpu, monkeypatch, caplog):
    """The program of the trial passes, but the search's own does not fit into memory."""

    class Failing(Named):
        tried = 0

        def prepare(self, program):
            self.tried += 1
            raise RuntimeError("CUDA out of memory")

    failing = Failing("full_graph")
    monkeypatch.setattr(cuda_graphs, "_make", lambda name, device: failing if name == "full_graph" else Named(name))
    driver = select_driver("auto", "cuda").driver
    assert driver.name == "full_graph"
    done = []
    for number in range(2):
        run = driver.prepare(Program(torch.zeros(0, dtype=torch.bool), (partial(done.append, number),)))
        run()
    assert (done, driver.name, failing.tried) == ([0, 1], "no_while_loops", 1)
    assert "CUDA graphs `full_graph` failed, falling back to `no_while_loops`: CUDA out of memory" in caplog.text


def test_the_choice_is_logged_once(caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        select_driver("auto", "cpu")
    assert [record.getMessage() for record in caplog.records] == [
        "CUDA graphs `no_graphs` on cpu: cpu is not a CUDA device"
    ]


@pytest.mark.parametrize("mode", ["auto", "no_while_loops"])
def test_the_versions_that_must_fit_are_logged(gpu, caplog, mode):
    gpu.answers |= {"cuDriverGetVersion": (13000,), "nvrtcVersion": (13, 5)}
    with caplog.at_level(logging.INFO, "penstock"):
        select_driver(mode, "cuda")
    versions = f"(CUDA of the driver 13.0, NVRTC 13.5, torch {torch.__version__} for CUDA {torch.version.cuda})"
    assert caplog.messages[-1].endswith(versions)


@pytest.mark.parametrize("problem", ["nvrtcVersion", "missing"])
def test_an_unknown_version_stops_nothing(gpu, monkeypatch, caplog, problem):
    gpu.fails = problem
    driver = "13.0"
    if problem == "missing":
        monkeypatch.setattr(cuda_calls, "IMPORT_ERROR", ImportError("No module named 'cuda'"))
        driver = "unknown"
    with caplog.at_level(logging.INFO, "penstock"):
        assert select_driver("auto", "cuda").driver.name == "no_while_loops"
    assert f"CUDA of the driver {driver}, NVRTC unknown, torch" in caplog.messages[-1]


CPU = torch.device("cpu")


def test_a_driver_that_loops_passes():
    try_out(EagerDriver(), CPU)


class OneRound(EagerDriver):
    """Runs the body of each loop once."""

    name = "one round"

    def prepare(self, program: Program):
        def run() -> None:
            for _, step in steps_with_depth(program.body):
                step()

        return run


class OnlyOnce(EagerDriver):
    """Its second run runs the first step alone."""

    name = "only once"

    def prepare(self, program: Program):
        run, runs = super().prepare(program), []

        def run_once() -> None:
            program.body[0]()
            if not runs:
                run()
            runs.append(1)

        return run_once


@pytest.mark.parametrize("driver", [OneRound(), OnlyOnce()])
def test_a_driver_that_counts_wrong_is_named(driver):
    with pytest.raises(GraphError, match=f"counted . and . rounds in `{driver.name}`"):
        try_out(driver, CPU)
