"""Programs of bucketed batch sizes: when they are prepared, and which one a batch gets."""

import logging

import torch

from penstock.decoding.tensors.graph_buckets import Buckets
from penstock.graphs.program import EagerDriver, Program


class CountingDriver(EagerDriver):
    """Counts what it prepares."""

    name = "full_graph"
    prepared = 0

    def prepare(self, program: Program):
        self.prepared += 1
        return super().prepare(program)


def test_everything_is_captured_at_construction_and_logged(caplog):
    driver, made = CountingDriver(), []

    def workspace(size: int) -> int:
        made.append(size)
        return size

    with caplog.at_level(logging.INFO, "penstock"):
        buckets = Buckets(driver, 20, workspace, lambda size: Program(torch.zeros(0, dtype=torch.bool), ()))
    assert (made, driver.prepared) == ([20, 16], 2), "the largest first"
    assert caplog.messages == ["CUDA graphs `full_graph`: a search is captured for 2 batch sizes"]
    found = [buckets.fitting(batch) for batch in (1, 16, 17, 20, 21)]
    assert [None if bucket is None else bucket.workspace for bucket in found] == [16, 16, 20, 20, None]
    for bucket in filter(None, found):
        bucket.run()
    assert driver.prepared == 2
