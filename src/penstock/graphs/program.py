"""A program: steps over tensors that never move, and loops whose conditions are tensors too.

What a search hands to a driver. Knows neither searches nor CUDA.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Union

import torch

Step = Callable[[], None]
"""Reads and writes tensors that keep their place, and never waits for the host: it can be captured and replayed."""


class While(NamedTuple):
    """Runs its body as long as a flag holds; the flag is looked at before each round."""

    flag: int
    """Index into the program's flags."""
    body: tuple[Union[Step, "While"], ...]


class Program(NamedTuple):
    """Steps and loops, one after another."""

    flags: torch.Tensor
    """[n] bool, on the device of the steps; written by the steps alone."""
    body: tuple[Step | While, ...]


def run_eagerly(program: Program) -> None:
    """Runs the program with its loops on the host; synchronises once before each round."""
    _run(program.body, program.flags)


def _run(body: tuple[Step | While, ...], flags: torch.Tensor) -> None:
    for item in body:
        if isinstance(item, While):
            while flags[item.flag].item():
                _run(item.body, flags)
        else:
            item()


def steps_with_depth(body: tuple[Step | While, ...], depth: int = 0) -> Iterator[tuple[int, Step]]:
    """Every step in order, with the number of loops around it."""
    for item in body:
        if isinstance(item, While):
            yield from steps_with_depth(item.body, depth + 1)
        else:
            yield depth, item
