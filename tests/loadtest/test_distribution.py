"""Histogram and series of a window's latencies."""

import numpy as np
import pytest

from loadtest.distribution import histogram, series
from tests.helpers.loadtest_records import request_rows


def test_every_answered_latency_is_in_the_bin_that_holds_it():
    latency_s = np.array([0.02, 0.021, 0.3, 500.0, 0.0, np.inf])
    found = histogram(latency_s)
    assert sum(found["counts"]) == 5 and found["unanswered"] == 1
    edges_ms, counts = found["edges_ms"], found["counts"]
    assert len(edges_ms) == len(counts) + 1
    assert counts[0] >= 1 and counts[-1] >= 1  # no empty bins at the ends
    for value_ms, least in ((20.5, 2), (300.0, 1)):
        (index,) = [i for i in range(len(counts)) if edges_ms[i] <= value_ms < edges_ms[i + 1]]
        assert counts[index] >= least


def test_no_latency_gives_an_empty_histogram():
    assert histogram(np.empty(0)) == {"edges_ms": [], "counts": [], "unanswered": 0}


def test_the_series_puts_each_chunk_at_its_deadline():
    rows = [
        {"deadline_s": 100.2, "answered_s": 100.3, "completes_chunk": True},
        {"deadline_s": 100.9, "answered_s": 102.9, "completes_chunk": True},
        {"deadline_s": 101.5, "answered_s": 101.6, "completes_chunk": False},
        {"deadline_s": 102.5, "answered_s": np.inf},
    ]
    found = series(request_rows(*rows), 100.0, 103.0, chunk_s=0.5)
    assert (found["step_s"], found["at_s"]) == (1, [0, 1, 2])
    assert (found["chunks"], found["late_chunks"]) == ([2, 0, 1], [1, 0, 1])
    assert found["p95_ms"][0] == pytest.approx(2000)
    assert np.isnan(found["p95_ms"][1]) and np.isinf(found["p95_ms"][2])


def test_a_long_series_has_at_most_120_points():
    found = series(request_rows({"deadline_s": 3000.0, "completes_chunk": True}), 0.0, 3600.0, chunk_s=0.5)
    assert found["step_s"] == 30 and len(found["at_s"]) == 120 and found["chunks"][100] == 1
