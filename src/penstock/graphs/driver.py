"""The interface of a driver, which runs programs, and the eager driver, which needs no CUDA."""

from collections.abc import Callable
from typing import Protocol

import torch

from penstock.errors import ErrorCode, PenstockError
from penstock.graphs.program import Program, Step, run_eagerly

Runner = Callable[[], None]
"""Runs a prepared program once, on the current stream."""

CAPTURE_ERRORS = (RuntimeError, OSError, AttributeError, TypeError)
"""Raised by drivers and bindings: a call that fails (GraphError is a RuntimeError), a missing library, or an interface
of another version."""

_WARM_UP_ROUNDS = 2


class GraphError(PenstockError, RuntimeError):
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
