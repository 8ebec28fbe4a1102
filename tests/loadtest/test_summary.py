import json
import math
from dataclasses import replace

import pytest

from loadtest.plan import Window
from loadtest.processes import GATEWAY
from loadtest.records import CUT_SHORT, FAILED, REJECTED, Utterance
from loadtest.report import window_lines
from loadtest.summary import summarize
from penstock.reporting import finite
from tests.helpers.loadtest_records import (
    BEGAN_S,
    CONDITIONS,
    request_rows,
    snapshot,
    spoken,
    summary,
    utterance,
)


def test_latencies_finals_and_real_time_factor():
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, delays_s=0.3, text="ada lovelace")])
    assert (found["chunks"], found["finals"], found["late_chunks"], found["requests"]) == (3, 2, 0, 3)
    assert found["chunk_latency_ms"]["max"] == pytest.approx(300.0)
    assert found["final_latency_ms"]["p50"] == pytest.approx(300.0)
    assert found["rtfx"] == pytest.approx(0.3 / 10.0)
    assert (found["passed"], found["reasons"], found["seconds"]) == (True, [], 10.0)


def test_what_lies_outside_the_window_does_not_count():
    found = summary([spoken(9.0, 9.5, text="wrong"), spoken(20.0, delays_s=9.0), spoken(15.0, text="ada lovelace")])
    assert (found["chunks"], found["utterances"], found["words"]["wer"]) == (1, 1, 0.0)


def test_one_late_chunk_of_two_fails():
    found = summary([spoken(11.0, delays_s=0.51), spoken(12.0)])
    assert (found["late_chunks"], found["late_share"], found["passed"]) == (1, 0.5, False)


def test_rejections_and_errors_are_counted_apart_and_fail_the_trial():
    rejected = Utterance(0, REJECTED, "", "STREAM_LIMIT: s", 0.05, request_rows({"sent_s": BEGAN_S + 11}))
    failed = Utterance(0, FAILED, "", "ReplyTimeoutError: s", None, request_rows({"sent_s": BEGAN_S + 12}))
    found = summary([rejected, rejected, failed, spoken(13.0, text="ada lovelace")])
    assert found["rejections"]["count"] == 2
    assert found["rejections"]["after_ms"]["p50"] == pytest.approx(50.0)
    assert found["errors"] == {"count": 1, "kinds": {"ReplyTimeoutError": 1}, "examples": ["ReplyTimeoutError: s"]}
    assert (found["chunks"], found["words"]["utterances"]) == (1, 1)
    assert found["reasons"] == ["1 streams failed", "2 streams were rejected"]
    assert found["bottlenecks"][0]["resource"] == "slots"


def test_streams_that_failed_before_their_first_request_are_counted():
    failed = [Utterance(0, FAILED, error="SERVER_UNREACHABLE: s", opened_s=BEGAN_S + at_s) for at_s in (9, 12, 20)]
    found = summary([*failed, spoken(13.0, text="ada lovelace")])
    assert (found["errors"]["count"], found["utterances"], found["reasons"]) == (1, 2, ["1 streams failed"])


def test_a_load_that_was_not_attempted_proves_nothing():
    """One request of 100 ms in 10 s is a hundredth of a stream."""
    window = Window(1, 10.0, 20.0)
    found = summarize(window, BEGAN_S, [spoken(11.0)], snapshot(10.0, 1.0), snapshot(20.0, 2.0), CONDITIONS)
    assert found["attempted_streams"] == pytest.approx(0.01)
    assert found["reasons"] == [
        "only 0.0 of 1 streams attempted: the load generator fell behind",
    ]
    assert not found["passed"]


def test_word_errors_are_pooled_over_complete_utterances():
    found = summary(
        [
            spoken(11.0, text="ada lovelace"),
            spoken(12.0, text="ada love lace"),
            spoken(13.0, text="charles", recording=1),
            spoken(14.0, text="nothing", outcome=CUT_SHORT),
        ]
    )
    words = found["words"]
    assert (words["utterances"], words["words"], words["recordings"]) == (3, 6, 2)
    assert (words["substitutions"], words["insertions"], words["deletions"]) == (1, 1, 1)
    assert words["wer"] == pytest.approx(0.5)
    assert words["recordings_with_several_texts"] == 1


def test_models_have_their_prediction():
    """200 requests in 100 batches in 10 s: 10 batches per second of 1 ms each, so M/D/1 waits 1 * 0.01 / (2 * 0.99)."""
    encoder = summary([spoken(11.0)])["models"]["encoder"]
    assert (encoder["requests"], encoder["batch"], encoder["batches_per_s"]) == (200, 2, 10)
    assert (encoder["queue_ms"], encoder["compute_ms"]) == pytest.approx((2.0, 1.0))
    assert encoder["predicted_utilization"] == pytest.approx(0.01)
    assert encoder["predicted_queue_ms"] == pytest.approx(0.01 / 1.98)


def test_a_gateway_s_cpu_time_counts_per_100_ms_of_audio():
    """0.02 cores for 0.05 streams: 0.4 s of CPU time per second of audio."""
    window = Window(0.05, 10.0, 20.0)
    spoken_s = [spoken(11.0, 12.0, 13.0, 14.0, 15.0)]
    before, after = snapshot(10.0, 1.0), snapshot(20.0, 2.0)
    assert summarize(window, BEGAN_S, spoken_s, before, after, CONDITIONS)["gateway_us_per_100_ms"] is None
    usage = replace(after.usage, cpu_s={GATEWAY: 0.2}, pss_mib={GATEWAY: 50.0})
    found = summarize(window, BEGAN_S, spoken_s, before, replace(after, usage=usage), CONDITIONS)
    assert found["gateway_us_per_100_ms"] == pytest.approx(40_000.0)
    assert "  40000 us of CPU time of the gateway per 100 ms of audio" in window_lines(finite(found))


def test_without_the_server_s_counters_the_rest_is_there_and_says_so():
    found = summary([spoken(11.0)], requests=(None, None))
    assert (found["models"], found["metrics_problem"]) == ({}, "no metrics")
    assert found["chunks"] == 1


def test_a_server_that_was_restarted_meanwhile_loses_its_own_figures_alone():
    found = summary([spoken(11.0)], requests=(300.0, 100.0))
    assert found["models"] == {} and "the server was restarted" in found["metrics_problem"]
    assert found["chunks"] == 1


def test_a_window_in_which_nothing_happened_does_not_pass_and_fits_into_json():
    found = summary([])
    assert (found["passed"], found["words"]["wer"], found["late_share"]) == (False, None, 0.0)
    assert "null" in json.dumps(finite(found), allow_nan=False)


def test_answers_that_never_came_fail_it():
    lost = utterance({"deadline_s": BEGAN_S + 11, "sent_s": BEGAN_S + 11, "answered_s": math.inf}, outcome=CUT_SHORT)
    found = summary([lost, spoken(12.0)])
    assert (found["unanswered_requests"], found["late_chunks"], found["passed"]) == (1, 1, False)
