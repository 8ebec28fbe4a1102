"""Which driver runs the decoder's programs: chosen by what the machine can do, or forced by an option.

The one place that knows all drivers. Knows no search.
"""

import logging
from typing import NamedTuple

import torch

from penstock.errors import PenstockError
from penstock.graphs.driver import Driver, EagerDriver
from penstock.graphs.fallback_driver import CAPTURE_ERRORS, FallbackDriver
from penstock.graphs.staged_driver import StagedDriver, TorchCapture
from penstock.graphs.trial import try_out
from penstock.graphs.while_driver import WhileDriver

OPTIONS = ("auto", "eager", "staged", "while")
LEAST_CUDA_FOR_WHILE = (12, 6)
"""Nested WHILE nodes came with 12.4; since 12.6 their bodies may hold kernels whose blocks wait for each other."""

_log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """A driver, and why this one."""

    driver: Driver
    reason: str


def check_option(option: str) -> str:
    """The option, if it is one of `OPTIONS`; else PenstockError."""
    if option not in OPTIONS:
        raise PenstockError(f"CUDA graphs {option!r} are not supported; supported: {', '.join(OPTIONS)}")
    return option


def select_driver(option: str, device: str | torch.device) -> Choice:
    """The driver that `option` asks for on `device`, said once in the log.

    auto: one graph with WHILE nodes where driver and bindings can, else graphs with the loop on the host, else eager.
    PenstockError if the option is unknown or the machine cannot do it.
    """
    check_option(option)
    device = torch.device(device)
    choice = _best(device) if option == "auto" else _forced(option, device)
    _log.info("decoder: driver `%s` on %s: %s", choice.driver.name, device, choice.reason)
    return choice


def _forced(option: str, device: torch.device) -> Choice:
    reason = "asked for"
    if option == "eager":
        return Choice(EagerDriver(), reason)
    obstacle = obstacle_to_graphs(device) or (obstacle_to_while(device) if option == "while" else None)
    if obstacle:
        raise PenstockError(f"CUDA graphs {option!r} are not possible on {device}: {obstacle}")
    return Choice(_make(option, device), reason)


def _best(device: torch.device) -> Choice:
    obstacle = obstacle_to_graphs(device)
    if obstacle:
        return Choice(EagerDriver(), obstacle)
    obstacle = obstacle_to_while(device)
    if obstacle is None:
        try:
            driver = _make("while", device)
            try_out(driver, device)
            return Choice(FallbackDriver(driver, _make("staged", device)), "the driver has conditional nodes")
        except CAPTURE_ERRORS as error:
            obstacle = str(error)
    return Choice(_make("staged", device), f"no conditional nodes: {obstacle}")


def _make(name: str, device: torch.device) -> Driver:
    if name == "staged":
        return StagedDriver(TorchCapture(device))
    from penstock.graphs.while_graph import CudaGraphBuilder  # needs cuda-bindings, which a machine may lack

    return WhileDriver(CudaGraphBuilder(device))


def obstacle_to_graphs(device: torch.device) -> str | None:
    """Why CUDA graphs are impossible on the device; None if they are not."""
    if device.type != "cuda":
        return f"{device.type} is no CUDA device"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def obstacle_to_while(device: torch.device) -> str | None:
    """Why graphs with WHILE nodes are impossible on a CUDA device; None if they are not."""
    del device  # all devices of a machine have the same driver
    try:
        from penstock.graphs import cuda_calls
    except ImportError as error:
        return f"the package cuda-bindings is missing ({error})"
    try:
        version = cuda_calls.driver_version()
        cuda_calls.compiler_version()
    except CAPTURE_ERRORS as error:
        return str(error)
    if version < LEAST_CUDA_FOR_WHILE:
        least = ".".join(map(str, LEAST_CUDA_FOR_WHILE))
        return f"the driver has CUDA {version[0]}.{version[1]}, conditional nodes need {least}"
    return None
