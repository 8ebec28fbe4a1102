import numpy as np
import pytest

from penstock.pipeline.slots.ledger import LatencyTable


@pytest.fixture
def tables(tmp_path) -> tuple[LatencyTable, LatencyTable]:
    """The decoder's and the features model's view of one file."""
    return LatencyTable(3, tmp_path / "latency"), LatencyTable(3, tmp_path / "latency")


@pytest.mark.parametrize("scale_ms", [2.0, 40.0, 3000.0])
def test_the_median_is_within_five_percent_and_the_maximum_is_exact(tables, scale_ms):
    latencies_ms = scale_ms * np.random.default_rng(1).lognormal(0.0, 0.5, 1001)
    for latency_ms in latencies_ms:
        tables[0].add(np.array([1]), int(1e6 * latency_ms))
    median_ms, longest_ms = tables[1].summary(1)
    assert abs(median_ms / np.median(latencies_ms) - 1) < 0.05
    assert longest_ms == np.ceil(latencies_ms.max())
    assert tables[1].summary(0) is None


def test_one_chunk_and_extreme_times(tables):
    tables[0].add(np.array([0]), 300)
    assert tables[1].summary(0) == (1.0, 1.0)
    tables[0].reset(np.array([0]))
    tables[0].add(np.array([0]), 10**13)  # beyond the last bin
    assert tables[1].summary(0)[1] == 10_000_000
    tables[0].reset(np.array([0]))
    assert tables[1].summary(0) is None
