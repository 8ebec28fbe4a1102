import argparse

import pytest

from loadtest.options import (
    add_arguments,
    read_plan,
    request_samples,
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


@pytest.mark.parametrize("words", [["--streams", "2,4"], ["--streams", "1,2,3", "--shape", "ramp"]])
def test_too_many_numbers_for_a_shape_are_rejected(words):
    with pytest.raises(ValueError, match="too many numbers for --shape"):
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
