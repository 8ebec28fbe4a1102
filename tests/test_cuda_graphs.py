"""Which driver is chosen, why, and what is refused."""

import logging
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from penstock import cuda_graphs
from penstock.cuda_graphs import check_option, select_driver
from penstock.errors import PenstockError
from penstock.graphs.driver import EagerDriver, GraphError
from penstock.graphs.program import Program
from tests.fake_cuda import FakeCuda


@pytest.fixture
def gpu(monkeypatch) -> Iterator[FakeCuda]:
    """A machine that looks as if it had a GPU, with drivers that are not made."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_graphs, "_make", lambda name, device: Named(name))
    monkeypatch.setattr(cuda_graphs, "try_out", lambda driver, device: None)
    with FakeCuda().installed() as cuda:
        yield cuda


class Named(EagerDriver):
    def __init__(self, name: str):
        self.name = name


@pytest.mark.parametrize("option", ["auto", "eager"])
def test_without_a_gpu_it_is_eager(option):
    choice = select_driver(option, "cpu")
    assert isinstance(choice.driver, EagerDriver)
    assert choice.reason == {"auto": "cpu is no CUDA device", "eager": "asked for"}[option]


@pytest.mark.parametrize("option", ["staged", "while"])
def test_graphs_on_the_cpu_are_refused_by_name(option):
    with pytest.raises(PenstockError, match=f"'{option}' are not possible on cpu: cpu is no CUDA device"):
        select_driver(option, "cpu")


@pytest.mark.parametrize("option", ["graph", "", "AUTO"])
def test_an_unknown_option_is_refused_by_name(option):
    for refuse in (check_option, lambda option: select_driver(option, "cpu")):
        with pytest.raises(PenstockError, match=f"'{option}'.*auto, eager, staged, while"):
            refuse(option)


def test_a_cuda_device_that_torch_does_not_find(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_driver("auto", "cuda").reason == "torch finds no CUDA device"
    with pytest.raises(PenstockError, match="torch finds no CUDA device"):
        select_driver("staged", "cuda:0")


@pytest.mark.parametrize(("option", "expected"), [("auto", "while"), ("while", "while"), ("staged", "staged")])
def test_on_a_gpu_that_can(gpu, option, expected):
    assert select_driver(option, "cuda").driver.name == expected


def test_an_old_driver_has_no_conditional_nodes(gpu):
    gpu.answers["cuDriverGetVersion"] = (12030,)
    choice = select_driver("auto", "cuda")
    assert choice.driver.name == "staged"
    assert choice.reason == "no conditional nodes: the driver has CUDA 12.3, conditional nodes need 12.6"
    with pytest.raises(PenstockError, match=r"'while' are not possible on cuda: the driver has CUDA 12.3"):
        select_driver("while", "cuda")


@pytest.mark.parametrize("call", ["cuDriverGetVersion", "nvrtcVersion"])
def test_broken_libraries_are_named(gpu, call):
    gpu.fails = call
    assert f"ERROR_OF_{call}" in select_driver("auto", "cuda").reason


def test_missing_bindings_are_named(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    choice = select_driver("auto", "cuda")
    assert choice.driver.name == "staged"
    assert "the package cuda-bindings is missing" in choice.reason


def test_auto_goes_on_without_what_fails_to_start(gpu, monkeypatch):
    def make(name: str, device: torch.device) -> Named:
        if name == "while":
            raise GraphError("CUDA: NVRTC_ERROR_COMPILATION")
        return Named(name)

    monkeypatch.setattr(cuda_graphs, "_make", make)
    choice = select_driver("auto", "cuda")
    assert (choice.driver.name, "NVRTC_ERROR_COMPILATION" in choice.reason) == ("staged", True)
    with pytest.raises(GraphError):
        select_driver("while", "cuda")


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError, TypeError])
def test_auto_goes_on_without_what_fails_its_trial(gpu, monkeypatch, kind):
    def try_out(driver: Named, device: torch.device) -> None:
        raise kind("CUDA error: an illegal memory access")

    monkeypatch.setattr(cuda_graphs, "try_out", try_out)
    choice = select_driver("auto", "cuda")
    assert (choice.driver.name, "illegal memory access" in choice.reason) == ("staged", True)
    assert select_driver("while", "cuda").driver.name == "while", "asked for by name: its own error shall be seen"


def test_auto_goes_on_without_a_driver_that_fails_with_a_real_program(gpu, monkeypatch, caplog):
    """The small program of the trial went well; the search's own does not fit into memory."""

    class Failing(Named):
        tried = 0

        def prepare(self, program):
            self.tried += 1
            raise RuntimeError("CUDA out of memory")

    failing = Failing("while")
    monkeypatch.setattr(cuda_graphs, "_make", lambda name, device: failing if name == "while" else Named(name))
    driver = select_driver("auto", "cuda").driver
    assert driver.name == "while"
    done = []
    for number in range(2):
        run = driver.prepare(Program(torch.zeros(0, dtype=torch.bool), (partial(done.append, number),)))
        run()
    assert (done, driver.name, failing.tried) == ([0, 1], "staged", 1)
    assert "driver `while` failed, so `staged` goes on: CUDA out of memory" in caplog.text


def test_the_choice_is_said_once(caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        select_driver("auto", "cpu")
    assert [record.getMessage() for record in caplog.records] == [
        "decoder: driver `eager` on cpu: cpu is no CUDA device"
    ]
