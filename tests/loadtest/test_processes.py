"""Readings of real processes, this one among them, and the use between two readings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.processes import GATEWAY, GENERATOR, SERVER, Usage, machine_use, model_times, parse_metrics, predict_queue


def usage(time_s: float, busy_s: float, generator_cpu_s: dict[int, float], **cpu_s: float) -> Usage:
    return Usage(time_s, busy_s, time_s / 5, cpu_s, dict.fromkeys(cpu_s, 20 + time_s), generator_cpu_s)


def test_by_hand():
    """A gateway is neither the server nor another program."""
    names = {"encoder": 1.0, SERVER: 2.0, GENERATOR: 4.0, GATEWAY: 3.0}
    before = usage(100.0, 50.0, {7: 1.0, 8: 3.0}, **names)
    after = usage(110.0, 70.0, {7: 4.0, 8: 4.0}, **{name: value + 4.0 for name, value in names.items()})
    use = machine_use(before, after, cores=2)
    assert (use.seconds, use.busy_cores, use.other_cores, use.server_cores) == pytest.approx((10.0, 2.0, 0.4, 0.8))
    assert use.busiest_generator_cores == pytest.approx(0.3)
    assert use.steal_percent == pytest.approx(10.0)  # 2 s of 20 core seconds
    encoder = use.processes["encoder"]
    assert (encoder.cores, encoder.pss_mib, encoder.pss_growth_mib) == pytest.approx((0.4, 130, 10))
    assert sum(process.cores for process in use.processes.values()) + use.other_cores == pytest.approx(use.busy_cores)


TEXT = """
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="decoder",version="1"} 154
nv_inference_request_failure{model="asr",reason="OTHER",version="1"} 8
nv_inference_request_failure{model="asr",reason="BACKEND",version="1"} 2
nv_inference_compute_infer_duration_us{model="decoder",version="1"} 4.3363e+05
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_cpu_utilization 0.94
"""

BEFORE = {("encoder", "request_success"): 100.0, ("encoder", "queue_duration_us"): 5000.0}
GAINED = {
    "request_success": 40.0,
    "exec_count": 10.0,
    "request_failure": 3.0,
    "request_duration_us": 400_000.0,
    "queue_duration_us": 80_000.0,
    "compute_input_duration_us": 4_000.0,
    "compute_infer_duration_us": 300_000.0,
    "compute_output_duration_us": 8_000.0,
}


def after(**change: float) -> dict:
    return {("encoder", name): BEFORE.get(("encoder", name), 0.0) + value for name, value in (GAINED | change).items()}


def test_counters_are_read_and_those_of_one_model_added_up():
    assert parse_metrics(TEXT) == {
        ("decoder", "request_success"): 154.0,
        ("asr", "request_failure"): 10.0,
        ("decoder", "compute_infer_duration_us"): 433_630.0,
    }


def test_times_of_a_model_by_hand():
    times = model_times("encoder", BEFORE, after())
    assert (times.requests, times.batches, times.failures, times.batch) == (40, 10, 3, 4)
    assert (times.total_ms, times.queue_ms) == pytest.approx((10.0, 2.0))
    assert (times.input_ms, times.infer_ms, times.output_ms) == pytest.approx((0.1, 7.5, 0.2))
    assert times.compute_ms == pytest.approx(7.8)


def test_a_server_that_was_restarted_is_noticed():
    with pytest.raises(ValueError, match="nv_inference_queue_duration_us of encoder decreased"):
        model_times("encoder", BEFORE, after(queue_duration_us=-1.0))


@given(st.floats(0.01, 1000), st.floats(1e-4, 0.999))
def test_the_paper_s_formula(mu, utilisation):
    arrivals = utilisation * mu
    predicted = predict_queue(arrivals, 1 / mu)
    assert predicted.total_s == pytest.approx(1 / mu + arrivals / (2 * mu * (mu - arrivals)))
    assert predicted.queue_s == pytest.approx(predicted.total_s - 1 / mu, abs=1e-9 / mu)
