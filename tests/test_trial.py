import pytest
import torch

from penstock.graphs.driver import EagerDriver, GraphError
from penstock.graphs.program import Program, steps_with_depth
from penstock.graphs.trial import try_out

CPU = torch.device("cpu")


def test_a_driver_that_loops_passes():
    try_out(EagerDriver(), CPU)


class OneRound(EagerDriver):
    """Takes loops for steps."""

    name = "one round"

    def prepare(self, program: Program):
        def run() -> None:
            for _, step in steps_with_depth(program.body):
                step()

        return run


class OnlyOnce(EagerDriver):
    """Its second run does nothing but clear."""

    name = "only once"

    def prepare(self, program: Program):
        run, runs = super().prepare(program), []

        def run_once() -> None:
            program.body[0]()
            if not runs:
                run()
            runs.append(1)

        return run_once


@pytest.mark.parametrize("driver", [OneRound(), OnlyOnce()])
def test_one_that_does_not_is_named(driver):
    with pytest.raises(GraphError, match=f"counted . and . rounds: driver {driver.name}"):
        try_out(driver, CPU)
