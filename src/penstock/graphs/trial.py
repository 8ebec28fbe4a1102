"""A small program of nested loops that counts: whether a driver really does on this machine what it says.

Knows neither drivers nor CUDA.
"""

import torch

from penstock.graphs.driver import Driver, GraphError
from penstock.graphs.program import Program, While

_OUTER_ROUNDS, _INNER_ROUNDS = 3, 2


def try_out(driver: Driver, device: torch.device) -> None:
    """Runs nested loops twice and looks at the counts. GraphError where they are wrong; waits for the device."""
    outer, inner, total = torch.zeros(3, dtype=torch.int64, device=device).unbind()
    flags = torch.zeros(2, dtype=torch.bool, device=device)

    def begin() -> None:
        outer.zero_()
        total.zero_()
        torch.lt(outer, _OUTER_ROUNDS, out=flags[0])

    def begin_inner() -> None:
        inner.zero_()
        torch.lt(inner, _INNER_ROUNDS, out=flags[1])

    def count_inner() -> None:
        inner.add_(1)
        total.add_(1)
        torch.lt(inner, _INNER_ROUNDS, out=flags[1])

    def count_outer() -> None:
        outer.add_(1)
        torch.lt(outer, _OUTER_ROUNDS, out=flags[0])

    loops = While(0, (begin_inner, While(1, (count_inner,)), count_outer))
    run = driver.prepare(Program(flags, (begin, loops)))
    for _ in range(2):
        run()
        found = (int(outer), int(total))
        if found != (_OUTER_ROUNDS, _OUTER_ROUNDS * _INNER_ROUNDS):
            raise GraphError(
                f"a trial with nested loops counted {found[0]} and {found[1]} rounds: driver {driver.name}"
            )
