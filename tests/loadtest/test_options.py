import argparse
from itertools import islice

import pytest

from loadtest.__main__ import main
from loadtest.options import SETTLE_S, Schedule, add_arguments, read_plan


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_lists_its_own_options(capsys):
    assert main(["options"]) == 0
    listed = capsys.readouterr().out
    assert "--minutes" in listed and "--beam-size" in listed and "--headless" not in listed


GATEWAY = ["--target", "gateway-riva"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--streams", "4,0"], "expected positive"),
        (["--minutes", "0"], "expected positive"),
        ([*GATEWAY, "--no-align"], "--no-align: requests of --target gateway-riva"),
        ([*GATEWAY, "--decoder", "alsd"], "options of streams, without --speakers on, are"),
        ([*GATEWAY, "--speakers", "3"], "options of streams, without --speakers on, are"),
        (["--endpoint-silence-ms", "800"], "^--endpoint-silence-ms: a load test allows no endpoints"),
        (["--endpoint-longest-s", "20"], "^--endpoint-longest-s: a load test allows no endpoints"),
    ],
)
def test_an_invalid_plan_is_rejected(words, message):
    with pytest.raises(ValueError, match=message):
        read_plan(options(*words))


def test_each_step_of_a_sweep_has_its_warm_up_and_its_window():
    plan = read_plan(options("--streams", "2,8,4", "--minutes", f"{20 / 60}", "--stagger-seconds", "3"))
    assert plan.duration_s == pytest.approx(75.0)
    for window, streams, begin_s in zip(plan.windows, (2, 8, 4), (0.0, 25.0, 50.0), strict=True):
        assert (window.streams, window.end_s - window.begin_s) == (streams, pytest.approx(20.0))
        assert window.begin_s == pytest.approx(begin_s + 3.0 + SETTLE_S)
        for moment_s in (begin_s, window.begin_s, window.end_s - 1e-6):
            assert plan.streams_at(moment_s) == streams


def test_every_recording_comes_once_a_round():
    order = list(islice(Schedule(0, 0, 1).recordings(5), 15))
    for round_ in (order[:5], order[5:10], order[10:]):
        assert sorted(round_) == list(range(5))
