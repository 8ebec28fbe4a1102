"""What a driver of programs is, and the one that needs nothing: the eager one. Knows no search."""

from collections.abc import Callable
from typing import Protocol

from penstock.errors import PenstockError
from penstock.graphs.program import Program, run_eagerly

Runner = Callable[[], None]
"""Runs a prepared program once, on the current stream."""


class GraphError(PenstockError, RuntimeError):
    """A CUDA graph cannot be used, captured or run; says what failed and how to do without.

    A RuntimeError as torch's own are: it may come in the middle of a step.
    """


class Driver(Protocol):
    """Runs programs. One driver's programs may share memory for what lies between their steps: run one at a time."""

    name: str

    def prepare(self, program: Program) -> Runner:
        """Readies a program to be run many times; may run its steps, so its tensors hold nothing of value yet."""


class CapturedProgram:
    """A runner that keeps its program: a graph knows the program's tensors by their addresses alone."""

    def __init__(self, program: Program, run: Runner):
        self._program, self._run = program, run

    def __call__(self) -> None:
        """Runs it."""
        self._run()


class EagerDriver:
    """Step after step, loops on the host."""

    name = "eager"

    def prepare(self, program: Program) -> Runner:
        """Nothing to do beforehand."""
        return lambda: run_eagerly(program)
