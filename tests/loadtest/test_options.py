import argparse
from itertools import islice, pairwise

import pytest

from loadtest.options import (
    RAMP_WINDOWS,
    SETTLE_S,
    Schedule,
    add_arguments,
    ramp,
    read_plan,
    request_samples,
    sweep,
    target_options,
)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "counts", "duration_s"),
    [
        (["--streams", "5", "--minutes", "1"], [5], 72.0),
        (["--streams", "2,4,8", "--shape", "sweep", "--minutes", "0.5", "--stagger-seconds", "3"], [2, 4, 8], 105.0),
        (["--streams", "16", "--shape", "ramp", "--minutes", "2"], [2, 4, 6, 8, 9.5, 11.5, 13, 15], 120.0),
    ],
)
def test_the_plan_of_the_options(words, counts, duration_s):
    plan = read_plan(options(*words))
    assert plan.duration_s == pytest.approx(duration_s)
    assert [window.streams for window in plan.windows] == pytest.approx(counts, abs=0.6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--streams", "2,4"], "too many numbers for --shape"),
        (["--streams", "1,2,3", "--shape", "ramp"], "too many numbers for --shape"),
        (["--streams", "5,4", "--shape", "ramp"], "expected 1 <= first <= last"),
        (["--streams", "4,0", "--shape", "sweep"], "expected positive"),
        (["--minutes", "0"], "expected positive"),
    ],
)
def test_an_invalid_plan_is_rejected(words, message):
    with pytest.raises(ValueError, match=message):
        read_plan(options(*words))


@pytest.mark.parametrize("target", ["batched", "gateway-riva", "gateway-realtime"])
def test_only_direct_streams_choose_their_requests(target):
    with pytest.raises(ValueError, match=f"--no-align: requests of --target {target}"):
        read_plan(options("--target", target, "--no-align"))
    read_plan(options("--target", target))


def test_streams_of_a_gateway_have_no_options_but_speakers():
    for words in (["--decoder", "alsd"], ["--boost-phrase", "ada"], ["--speakers", "3"]):
        with pytest.raises(ValueError, match="--target gateway-riva: options of streams, without --speakers on, are"):
            read_plan(options("--target", "gateway-riva", *words))
        read_plan(options("--target", "batched", *words))
    read_plan(options("--target", "gateway-riva", "--endpoint-silence-ms", "0"))
    assert target_options("gateway-riva") == ["--target", "gateway-riva"]
    read_plan(options(*target_options("gateway-riva+speakers")))


@pytest.mark.parametrize(
    ("name", "value"),
    [("--endpoint-silence-ms", "800"), ("--endpoint-no-speech-ms", "800"), ("--endpoint-longest-s", "20")],
)
def test_endpoints_are_rejected_and_can_be_switched_off(name, value):
    with pytest.raises(ValueError, match=f"^{name}: a load test allows no endpoints"):
        read_plan(options(name, value))
    read_plan(options(name, "0"))


@pytest.mark.parametrize("request_ms", [0.0, -1.0, 30_001.0])
def test_request_sizes_that_the_server_rejects(request_ms):
    with pytest.raises(ValueError, match="--request-ms is"):
        request_samples(request_ms, 16_000)


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


def test_every_recording_comes_once_a_round():
    order = list(islice(Schedule(0, 0, 1).recordings(5), 15))
    for round_ in (order[:5], order[5:10], order[10:]):
        assert sorted(round_) == list(range(5))
