"""Programs: steps over tensors at fixed addresses, and loops whose conditions are flags on the device; their drivers.

A search hands a program to a driver, which runs it. The eager driver needs no CUDA. Independent of searches.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, Union

import torch

from penstock.errors import ErrorCode, PenstockError
from penstock.runtime import check_device_works

Step = Callable[[], None]
"""Reads and writes tensors at fixed addresses and never synchronizes with the host: it can be captured and replayed."""
Runner = Callable[[], None]
"""Runs a prepared program once, on the current stream."""

CAPTURE_ERRORS = (RuntimeError, OSError, AttributeError, TypeError)
"""Raised by drivers and bindings: a call that fails (CudaGraphError is a RuntimeError), a missing library, or an
interface of another version."""

_WARM_UP_ROUNDS = 2
_log = logging.getLogger(__name__)


class While(NamedTuple):
    """Runs its body as long as a flag is True; the flag is read before each round."""

    flag: int
    """Index into the program's flags."""
    body: tuple[Union[Step, "While"], ...]


class Program(NamedTuple):
    """Steps and loops, run in order."""

    flags: torch.Tensor
    """[n] bool, on the device of the steps; written by the steps alone."""
    body: tuple[Step | While, ...]


def run_eagerly(program: Program) -> None:
    """Runs the program with its loops on the host; synchronizes once before each round of a loop."""
    flags = program.flags.unbind()
    run_body(program.body, lambda flag: bool(flags[flag].item()))


def run_body(body: tuple[Step | While, ...], read: Callable[[int], bool]) -> None:
    """Runs a body with its loops on the host; `read` returns a flag, before each round of a loop."""
    for item in body:
        if isinstance(item, While):
            while read(item.flag):
                run_body(item.body, read)
        else:
            item()


def steps_with_depth(body: tuple[Step | While, ...], depth: int = 0) -> Iterator[tuple[int, Step]]:
    """Yields every step in order, with the number of loops around it."""
    for item in body:
        if isinstance(item, While):
            yield from steps_with_depth(item.body, depth + 1)
        else:
            yield depth, item


class CudaGraphError(PenstockError, RuntimeError):
    """A CUDA graph cannot be used, captured or run. The message names what failed and the mode that avoids it.

    A RuntimeError, like torch's own errors, because it may be raised in the middle of a step.
    """

    code = ErrorCode.CUDA_FAILED


class Driver(Protocol):
    """Runs programs. The programs of one driver may share memory for intermediate tensors: run one at a time."""

    @property
    def name(self) -> str:
        """The mode: full_graph, no_while_loops or no_graphs."""

    def prepare(self, program: Program) -> Runner:
        """Returns a runner that may be called many times.

        May run the program's steps, so the program's tensors must not hold anything of value yet.
        """


class CapturedProgram:
    """A runner that keeps its program alive: a CUDA graph holds only the addresses of its tensors."""

    def __init__(self, program: Program, run: Runner):
        self._program, self._run = program, run

    def __call__(self) -> None:
        """Runs the program once."""
        self._run()


class EagerDriver:
    """Runs step after step, with the loops on the host (mode no_graphs)."""

    name = "no_graphs"

    def prepare(self, program: Program) -> Runner:
        """Captures nothing."""
        return lambda: run_eagerly(program)


def warm_up(steps: list[Step], stream: torch.cuda.Stream) -> None:
    """Runs the steps in order on `stream` before they are captured there, and waits for them.

    Kernels are loaded and libraries allocate their workspace of this stream, neither of which a capture can hold.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.inference_mode(), torch.cuda.stream(stream):
        for step in steps * _WARM_UP_ROUNDS:
            step()
    stream.synchronize()


def prepare_or_run_eagerly(
    prepare: Callable[[Driver], None], driver: Driver, device: torch.device, what: str
) -> Driver:
    """Prepares programs with the driver; where a graph fails, all of them with the eager one, with a warning.

    what: whose programs they are. Returns the driver that they run with. Raises DeviceLostError if the device cannot be
    used any more.
    """
    try:
        prepare(driver)
        return driver
    except CAPTURE_ERRORS as error:
        check_device_works(device, error)
        _log.warning("%s: CUDA graphs `%s` failed, its steps run eagerly: %s", what, driver.name, error)
    eager = EagerDriver()
    prepare(eager)
    return eager
