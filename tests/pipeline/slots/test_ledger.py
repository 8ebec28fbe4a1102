"""The ledger's counters, within one process and in a file that several share."""

import subprocess
import sys

import numpy as np
import pytest

from penstock.pipeline.slots.ledger import STAGES, LatencyTable, SlotLedger


@pytest.fixture(params=["memory", "file"])
def ledger(request, tmp_path) -> SlotLedger:
    return SlotLedger(4, tmp_path / "made" / "slots" if request.param == "file" else None)


def settled(ledger: SlotLedger, generation: int) -> list[int]:
    """Settled requests of every slot."""
    return [ledger.settled_requests(slot, generation) for slot in range(4)]


def test_requests_settled_by_any_stage_count(ledger):
    for stage, slot in (("encoder", 1), ("decoder", 1), ("decoder", 3)):
        ledger.settle(stage, slot, 5)
    assert settled(ledger, 5) == [0, 2, 0, 1]


def test_only_requests_of_the_generation_asked_for_count(ledger):
    for stage, generation in (("decoder", 5), ("encoder", 5), ("decoder", 6), ("decoder", 5), ("decoder", 6)):
        ledger.settle(stage, 2, generation)
    assert [ledger.settled_requests(2, generation) for generation in (4, 5, 6, 7)] == [0, 1, 2, 0]
    ledger.settle("encoder", 2, 6)
    assert [ledger.settled_requests(2, generation) for generation in (5, 6)] == [0, 3]


def test_other_processes_are_seen_at_once(tmp_path):
    ledger = SlotLedger(4, tmp_path / "slots")
    program = (
        "import sys; from pathlib import Path; from penstock.pipeline.slots.ledger import SlotLedger;"
        "ledger = SlotLedger(4, Path(sys.argv[1])); stage = sys.argv[2];"
        "[ledger.settle(stage, 1, 3) for _ in range(1000)]; ledger.fail(stage, 2, 5)"
    )
    others = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "slots"), stage]) for stage in STAGES]
    assert [other.wait(60) for other in others] == [0, 0, 0]
    assert settled(ledger, 3) == [0, 3000, 0, 0]
    assert ledger.failed_generations(2) == 5


def test_only_the_owner_may_read_the_file(tmp_path):
    SlotLedger(3, tmp_path / "slots")
    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "slots").stat().st_size == len(STAGES) * 7 * 3 * np.dtype(np.int64).itemsize


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
