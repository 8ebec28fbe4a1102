"""A whole program as one CUDA graph: its loops become conditional WHILE nodes, which may be nested.

A run is one launch and never waits for the host (arXiv 2406.03791, section 3.2). What a WHILE node is made of is behind
`GraphBuilder`, which tests replace.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from penstock.graphs.driver import CapturedProgram, Runner
from penstock.graphs.program import Program, Step, While


class GraphBuilder(Protocol):
    """Builds one graph after another."""

    def warm_up(self, program: Program) -> None:
        """Runs every step, so that libraries allocate and load what they need outside of a capture."""

    def graph(self) -> AbstractContextManager:
        """Captures what happens inside, without doing it."""

    def loop(self, flag: torch.Tensor) -> AbstractContextManager:
        """Inside `graph` or another loop: what happens inside is done while `flag` [] bool holds."""

    def finish(self) -> Runner:
        """The graph that was captured last, ready to run."""


class WhileDriver:
    """One graph with its loops inside."""

    name = "while"

    def __init__(self, builder: GraphBuilder):
        self._builder = builder

    def prepare(self, program: Program) -> Runner:
        """Captures the whole program."""
        self._builder.warm_up(program)
        with self._builder.graph():
            self._capture(program.body, program.flags)
        return CapturedProgram(program, self._builder.finish())

    def _capture(self, body: tuple[Step | While, ...], flags: torch.Tensor) -> None:
        for item in body:
            if isinstance(item, While):
                with self._builder.loop(flags[item.flag]):
                    self._capture(item.body, flags)
            else:
                item()
