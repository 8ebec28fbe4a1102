"""A program: steps over tensors at fixed addresses, and loops whose conditions are flags on the device.

A search hands a program to a driver. Independent of searches and of CUDA.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Union

import torch

Step = Callable[[], None]
"""Reads and writes tensors at fixed addresses and never synchronizes with the host: it can be captured and replayed."""


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
    _run(program.body, program.flags.unbind())


def _run(body: tuple[Step | While, ...], flags: tuple[torch.Tensor, ...]) -> None:
    for item in body:
        if isinstance(item, While):
            while flags[item.flag].item():
                _run(item.body, flags)
        else:
            item()


def steps_with_depth(body: tuple[Step | While, ...], depth: int = 0) -> Iterator[tuple[int, Step]]:
    """Yields every step in order, with the number of loops around it."""
    for item in body:
        if isinstance(item, While):
            yield from steps_with_depth(item.body, depth + 1)
        else:
            yield depth, item
