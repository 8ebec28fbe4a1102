"""A program gives the same result with every driver; here it sorts numbers with one loop inside another."""

import gc
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import EagerDriver, Program, While
from tests.helpers.fake_capture import FakeBuilder, FakeCapture

DRIVERS = {
    "no_graphs": EagerDriver,
    "no_while_loops": lambda: NoWhileLoopsDriver(FakeCapture()),
    "full_graph": lambda: FullGraphDriver(FakeBuilder()),
}


class Sorting:
    """Swaps the first neighbours out of order until there are none: outer loop; the inner one walks to them."""

    def __init__(self, size: int):
        self.numbers = torch.zeros(size, dtype=torch.int64)
        self.at = torch.zeros(1, dtype=torch.int64)
        self.rounds = torch.zeros(1, dtype=torch.int64)
        self.flags = torch.zeros(2, dtype=torch.bool)

    def program(self) -> Program:
        walk = While(0, (self._step_on,))
        return Program(self.flags, (self._begin, walk, While(1, (self._swap, self._begin, walk)), self._finish))

    def _begin(self) -> None:
        self.at.zero_()
        self._compare()

    def _compare(self) -> None:
        is_last = self.at >= len(self.numbers) - 1
        pair = self._pair()
        is_wrong = (pair[0] > pair[1]) & ~is_last
        self.flags.copy_(torch.cat([~is_last & ~is_wrong, is_wrong]))

    def _step_on(self) -> None:
        self.at += 1
        self._compare()

    def _swap(self) -> None:
        pair = self._pair()
        self.numbers.index_copy_(0, self._places(), pair.flip(0))

    def _finish(self) -> None:
        self.rounds += 1

    def _places(self) -> torch.Tensor:
        return torch.cat([self.at, self.at + 1]).clamp(max=len(self.numbers) - 1)

    def _pair(self) -> torch.Tensor:
        return self.numbers.index_select(0, self._places())


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_runs_every_loop(driver):
    sorting = Sorting(6)
    run = DRIVERS[driver]().prepare(sorting.program())
    sorting.rounds.zero_()
    for number, numbers in enumerate(([5, 4, 9, 1, 1, 0], [0, 1, 2, 3, 4, 5], [3, 2, 1, 3, 2, 1])):
        sorting.numbers.copy_(torch.tensor(numbers))
        run()
        assert sorting.numbers.tolist() == sorted(numbers)
        assert sorting.rounds.item() == number + 1


def test_stretches_between_loops_become_one_graph_each():
    capture = FakeCapture()
    NoWhileLoopsDriver(capture).prepare(Sorting(3).program())
    assert len(capture.graphs) == 5  # begin; step on; swap and begin; step on; finish


def test_loops_are_nested_in_one_graph():
    builder = FakeBuilder()
    FullGraphDriver(builder).prepare(Sorting(3).program())
    assert builder.deepest == 2


class NoReferences:
    """Captures nothing and, like a CUDA graph, keeps no tensor alive."""

    def warm_up(self, program: Program) -> None: ...

    def record(self, function):
        return self

    def replay(self): ...

    def host_flags(self, flags: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(flags)

    def graph(self):
        return nullcontext()

    def finish(self):
        return lambda: None


@pytest.mark.parametrize("driver", [NoWhileLoopsDriver, FullGraphDriver])
def test_a_captured_program_keeps_its_tensors_alive(driver):
    tensor = torch.zeros(3)
    alive = weakref.ref(tensor)
    run = driver(NoReferences()).prepare(
        Program(torch.zeros(1, dtype=torch.bool), (partial(torch.Tensor.zero_, tensor),))
    )
    del tensor
    gc.collect()
    assert alive() is not None
    del run
    gc.collect()
    assert alive() is None
