from itertools import islice, pairwise

import pytest

from loadtest.plan import RAMP_WINDOWS, SETTLE_S, Schedule, Window, ramp, sweep


def test_a_constant_load_is_measured_once_all_have_started():
    plan = sweep([64], measured_s=120.0, stagger_s=10.0)
    (window,) = plan.windows
    assert window == Window(64, 10.0 + SETTLE_S, 130.0 + SETTLE_S)
    assert plan.duration_s == window.end_s
    assert {plan.streams_at(moment) for moment in (0.0, 5.0, 131.9)} == {64}


def test_each_step_of_a_sweep_has_its_warm_up_and_its_window():
    plan = sweep([2, 8, 4], measured_s=20.0, stagger_s=3.0)
    assert plan.duration_s == pytest.approx(75.0)
    for window, streams, begin_s in zip(plan.windows, (2, 8, 4), (0.0, 25.0, 50.0), strict=True):
        assert (window.streams, window.end_s - window.begin_s) == (streams, pytest.approx(20.0))
        assert window.begin_s == pytest.approx(begin_s + 3.0 + SETTLE_S)
        for moment_s in (begin_s, window.begin_s, window.end_s - 1e-6):
            assert plan.streams_at(moment_s) == streams


def test_a_ramp_grows_evenly_and_its_windows_cover_it():
    plan = ramp(4, 20, duration_s=80.0)
    counts = [plan.streams_at(moment_s) for moment_s in range(81)]
    assert (counts[0], counts[40], counts[80]) == (4, 12, 20)
    assert counts == sorted(counts)
    assert len(plan.windows) == RAMP_WINDOWS
    assert (plan.windows[0].begin_s, plan.windows[-1].end_s) == (0.0, plan.duration_s)
    for window, following in pairwise(plan.windows):
        assert window.end_s == following.begin_s
    assert [window.streams for window in plan.windows] == [5, 7, 9, 11, 13, 15, 17, 19]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sweep([], 10.0, 1.0),
        lambda: sweep([4, 0], 10.0, 1.0),
        lambda: sweep([1], 0.0, 1.0),
        lambda: ramp(5, 4, 10.0),
        lambda: ramp(0, 4, 10.0),
        lambda: ramp(1, 4, -1.0),
    ],
)
def test_an_invalid_plan_is_rejected(wrong):
    with pytest.raises(ValueError, match="expected"):
        wrong()


def first(schedule: Schedule, number: int, count: int = 5) -> list[int]:
    return list(islice(schedule.recordings(count), number))


def test_every_recording_comes_once_a_round():
    order = first(Schedule(0, 0, 1), 15)
    for round_ in (order[:5], order[5:10], order[10:]):
        assert sorted(round_) == list(range(5))
