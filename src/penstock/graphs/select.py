"""Selects the driver of the decoder's programs: the best that the machine supports, or the one a setting names.

The only module that imports all drivers.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.errors import SettingError
from penstock.graphs import cuda_calls
from penstock.graphs.full_graph import CudaGraphBuilder, FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver, TorchCapture
from penstock.graphs.program import CAPTURE_ERRORS, Driver, EagerDriver

AUTO, FULL_GRAPH, NO_WHILE_LOOPS, NO_GRAPHS = "auto", "full_graph", "no_while_loops", "no_graphs"
MODES = (AUTO, FULL_GRAPH, NO_WHILE_LOOPS, NO_GRAPHS)
"""Values of the setting `cuda_graphs`, with NeMo's names of the modes."""
MIN_CUDA_FOR_WHILE_NODES = (12, 6)
"""Nested WHILE nodes came with 12.4; since 12.6 their bodies may hold kernels with grid-wide synchronization."""

_log = logging.getLogger(__name__)


class DriverChoice(NamedTuple):
    """A driver, and why it was selected."""

    driver: Driver
    reason: str


def select_driver(mode: str, device: str | torch.device) -> DriverChoice:
    """Returns the driver of `mode` on `device` and logs it.

    auto takes no_while_loops, and no_graphs without a CUDA device. full_graph must be configured: a WHILE graph that
    does not end cannot be interrupted. Raises SettingError if the mode is unknown or
    the machine does not support it.
    """
    check_mode(mode)
    device = torch.device(device)
    choice = _best(device) if mode == AUTO else _forced(mode, device)
    versions = f" ({_versions()})" if device.type == "cuda" else ""
    _log.info("CUDA graphs `%s` on %s: %s%s", choice.driver.name, device, choice.reason, versions)
    return choice


def select_step_driver(mode: str, device: str | torch.device) -> Driver | None:
    """Returns the driver of programs without loops: graphs from torch alone unless the mode has none; None on a CPU.

    Raises SettingError if the mode is unknown or CUDA graphs are not possible on the device.
    """
    if torch.device(device).type != "cuda":
        return None
    return select_driver(NO_GRAPHS if check_mode(mode) == NO_GRAPHS else NO_WHILE_LOOPS, device).driver


def _versions() -> str:
    """The versions that must fit: a driver rejects the code of a newer NVRTC, and torch brings its own NVRTC."""

    def version(read: Callable[[], tuple[int, int]]) -> str:
        if cuda_calls.IMPORT_ERROR is not None:
            return "unknown"
        try:
            return "{}.{}".format(*read())
        except CAPTURE_ERRORS:
            return "unknown"

    return (
        f"CUDA of the driver {version(cuda_calls.driver_version)}, NVRTC {version(cuda_calls.compiler_version)}, "
        f"torch {torch.__version__} for CUDA {torch.version.cuda}"
    )


def check_mode(mode: str) -> str:
    """Returns the mode if it is one of `MODES`, else raises SettingError."""
    if mode not in MODES:
        raise SettingError(f"CUDA graphs {mode!r} are not supported; supported: {', '.join(MODES)}")
    return mode


def _forced(mode: str, device: torch.device) -> DriverChoice:
    reason = "configured"
    if mode == NO_GRAPHS:
        return DriverChoice(EagerDriver(), reason)
    missing = missing_for_graphs(device) or (missing_for_while_nodes() if mode == FULL_GRAPH else None)
    if missing:
        raise SettingError(f"CUDA graphs {mode!r} are not possible on {device}: {missing}")
    return DriverChoice(_make(mode, device), reason)


def _best(device: torch.device) -> DriverChoice:
    missing = missing_for_graphs(device)
    if missing:
        return DriverChoice(EagerDriver(), missing)
    return DriverChoice(_make(NO_WHILE_LOOPS, device), "a CUDA device; `full_graph` must be configured")


def _make(mode: str, device: torch.device) -> Driver:
    if mode == NO_WHILE_LOOPS:
        return NoWhileLoopsDriver(TorchCapture(device))
    return FullGraphDriver(CudaGraphBuilder(device))


def missing_for_graphs(device: torch.device) -> str | None:
    """Returns why CUDA graphs are impossible on the device, or None."""
    if device.type != "cuda":
        return f"{device.type} is not a CUDA device"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def missing_for_while_nodes() -> str | None:
    """Returns why graphs with WHILE nodes are impossible on this machine's CUDA devices, or None."""
    if cuda_calls.IMPORT_ERROR is not None:
        return f"the package cuda-bindings is missing ({cuda_calls.IMPORT_ERROR})"
    try:
        version = cuda_calls.driver_version()
        cuda_calls.compiler_version()
    except CAPTURE_ERRORS as error:
        return str(error)
    if version < MIN_CUDA_FOR_WHILE_NODES:
        minimum = ".".join(map(str, MIN_CUDA_FOR_WHILE_NODES))
        return f"the driver has CUDA {version[0]}.{version[1]}, conditional nodes need {minimum}"
    return None
