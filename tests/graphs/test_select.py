"""Selection of a driver, its reason, and rejections."""

import logging
from collections.abc import Iterator

import pytest
import torch

from penstock.errors import PenstockError
from penstock.graphs import cuda_calls
from penstock.graphs import select as cuda_graphs
from penstock.graphs.program import EagerDriver
from penstock.graphs.select import check_mode, select_driver
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def gpu(monkeypatch) -> Iterator[FakeCuda]:
    """A machine that seems to have a GPU, with drivers that are not built."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_graphs, "_make", lambda name, device: Named(name))
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
    ("option", "expected"), [("auto", "no_while_loops")] + [(mode, mode) for mode in cuda_graphs.MODES[1:]]
)
def test_on_a_gpu_that_can(gpu, option, expected):
    assert select_driver(option, "cuda").driver.name == expected


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("old driver", "the driver has CUDA 12.3, conditional nodes need 12.6"),
        ("cuDriverGetVersion", "ERROR_OF_cuDriverGetVersion"),
        ("nvrtcVersion", "ERROR_OF_nvrtcVersion"),
        ("missing", r"the package cuda-bindings is missing \(No module named 'cuda'\)"),
    ],
)
def test_what_while_nodes_need_is_named(gpu, monkeypatch, problem, reason):
    gpu.fails = problem
    if problem == "old driver":
        gpu.answers["cuDriverGetVersion"] = (12030,)
    if problem == "missing":
        monkeypatch.setattr(cuda_calls, "IMPORT_ERROR", ImportError("No module named 'cuda'"))
    assert select_driver("auto", "cuda").driver.name == "no_while_loops"
    with pytest.raises(PenstockError, match=f"'full_graph' are not possible on cuda: .*{reason}"):
        select_driver("full_graph", "cuda")


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
