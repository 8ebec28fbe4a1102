import math

import pytest

from loadtest.checks import (
    MAX_P99_LAG_MS,
    GeneratorCheck,
    check_generator,
    chunk_duration_s,
    find_bottlenecks,
    late_chunks,
    latencies_s,
    reasons_to_fail,
)
from tests.helpers.loadtest_records import machine, model, request_rows

GOOD = {"chunks": 1000, "late": 1, "p95_final_s": 1.0, "errors": 0, "rejections": 0, "streams": 64, "attempted": 57.6}


def test_latency_counts_from_the_deadline_and_only_where_a_chunk_is_complete():
    requests = request_rows(
        {"completes_chunk": False},
        {"deadline_s": 5.0, "sent_s": 5.3, "answered_s": 5.5, "completes_chunk": True},
        {"deadline_s": 6.0, "sent_s": 6.0, "answered_s": 6.1, "is_last": True},
    )
    chunk_latency_s, final_latency_s = latencies_s(requests)
    assert chunk_latency_s == pytest.approx([0.5])
    assert final_latency_s == pytest.approx([0.1])


def test_a_request_without_an_answer_counts_as_a_late_chunk():
    chunk_latency_s, final_latency_s = latencies_s(request_rows({"answered_s": math.inf, "is_last": True}))
    assert late_chunks(chunk_latency_s, 100.0) == 1
    assert final_latency_s.tolist() == [math.inf]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"late": 2}, "2 of 1000 chunks late"),
        ({"p95_final_s": 1.001}, "above 1 s"),
        ({"p95_final_s": math.inf}, "above 1 s"),
        ({"errors": 1}, "1 streams failed"),
        ({"rejections": 3}, "3 streams were rejected"),
        ({"chunks": 0, "late": 0}, "too short"),
        ({"p95_final_s": math.nan}, "too short"),
        ({"attempted": 57.5}, "only 57.5 of 64 streams attempted"),
    ],
)
def test_each_limit_fails_a_trial_by_itself(change, reason):
    (found,) = reasons_to_fail(**GOOD | change)
    assert reason in found


def test_the_chunk_is_found_in_the_answers():
    """Chunks of 560 ms in requests of 100 ms; the first is shorter, the last request flushes what is left."""
    reached = (0.0, 0.0, 0.49, 0.49, 1.05, 1.05, 1.61, 1.61, 1.73)
    rows = [{"audio_processed_s": value, "is_last": i == 8} for i, value in enumerate(reached)]
    assert chunk_duration_s([request_rows(*rows)]) == 0.56


ON_TIME = GeneratorCheck(False, "on time")
EASY = {"features": model(), "encoder": model(), "decoder": model(), "asr": model(queue_ms=1000.0)}


def resources(use, models=EASY, generator=ON_TIME, rejections=0, threads=1) -> list[str]:
    return [found.resource for found in find_bottlenecks(generator, use, models, rejections, threads)]


@pytest.mark.parametrize(
    ("lag_ms", "use", "is_bottleneck", "text"),
    [
        (MAX_P99_LAG_MS, machine(busiest=0.99), False, "on schedule: p99 of its lag 20.0 ms"),
        (20.1, machine(busiest=0.95), True, "raise --processes"),
        (50.0, machine(cores=2, encoder=1.0, generator=0.95), True, "run it on another one"),
        (50.0, machine(cores=2, encoder=0.5, other_cores=1.5), True, "other programs used 1.50"),
        (50.0, machine(cores=8), True, "of 8"),
        (math.nan, machine(), False, "sent nothing"),
    ],
)
def test_the_load_generator_is_judged_by_its_lag(lag_ms, use, is_bottleneck, text):
    check = check_generator(lag_ms, use)
    assert check.is_bottleneck == is_bottleneck
    assert text in check.text


def test_slots_come_first_and_an_overloaded_generator_next():
    late = check_generator(80.0, machine(busiest=1.0))
    assert resources(machine(busiest=1.0, encoder=0.95), generator=late, rejections=2) == [
        "slots",
        "load generator",
        "CPU of encoder",
    ]
