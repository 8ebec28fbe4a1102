import math

import pytest

from loadtest.locust_run import processes_for
from loadtest.serving_ratio import (
    BATCHED,
    BEFORE,
    DIRECT,
    Measured,
    Trial,
    latency_ratio,
    missed_goals,
    ratio,
    read_trial,
    to_markdown,
)


def trial(audio_per_core: float = 100.0, p95_final_ms: float = 100.0, late_chunks: int = 0) -> Trial:
    return Trial(audio_per_core, late_chunks, p95_final_ms, 80.0, [], "")


def measured(direct=(140.0,) * 3, batched=(180.0,) * 3, latencies=(100.0, 105.0, 109.0), **changes) -> Measured:
    light = {
        kind: [trial(p95_final_ms=p95_ms)] * 3
        for kind, p95_ms in zip((BEFORE, DIRECT, BATCHED), latencies, strict=True)
    }
    loaded = {DIRECT: [trial(each) for each in direct], BATCHED: [trial(each) for each in batched]}
    return Measured("70,6", {DIRECT: 140, BATCHED: 140}, [200.0, 190.0, 210.0], loaded, light)._replace(**changes)


def test_ratios_are_medians_of_the_rounds():
    one = measured(direct=(100.0, 152.0, 210.0))
    assert ratio(one, DIRECT) == pytest.approx(0.8)
    assert latency_ratio(one, DIRECT) == pytest.approx(1.05)
    assert missed_goals(one) == []


def test_missed_goals_are_named():
    one = measured(direct=(120.0,) * 3, latencies=(100.0, 111.0, math.inf))
    one.light[BATCHED][0] = trial(late_chunks=2)
    assert missed_goals(one) == [
        "[70,6] direct: ratio 0.60, the goal is 0.65",
        "[70,6] direct: p95 to the final text is 1.11 of that of each part",
        "[70,6] batched: 2 chunks late",
        "[70,6] batched: p95 to the final text is inf of that of each part",
    ]


def test_a_server_that_was_not_measured_meets_no_goal():
    window = {
        "streams_per_server_core": None,
        "late_chunks": 0,
        "final_latency_ms": {"p95": None},
        "chunk_latency_ms": {"p95": 90.0},
        "reasons": ["too short"],
        "generator": {"text": "on schedule"},
    }
    found = read_trial(window)
    assert math.isnan(found.audio_per_core) and math.isinf(found.p95_final_ms)
    assert "ratio nan" in missed_goals(measured(loaded={DIRECT: [found], BATCHED: [found]}, in_process=[200.0]))[0]


def test_the_table():
    lines = to_markdown([measured()]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "[70,6]", "200", "140", "direct", "140", "0.70", "0", "100",
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == [
        "[70,6]",
        "batched",
        "109",
        "1.09",
        "80",
        "0",
        "100",
    ]


def test_batched_streams_need_fewer_processes():
    assert [processes_for(200), processes_for(200, ["--batched"]), processes_for(513, ["--batched"])] == [4, 1, 2]
