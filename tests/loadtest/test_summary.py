from dataclasses import replace

import pytest

from loadtest.plan import Window
from loadtest.processes import GATEWAY
from loadtest.records import CUT_SHORT, FAILED, REJECTED, Utterance
from loadtest.report import window_lines
from loadtest.summary import summarize
from penstock.reporting import finite
from tests.helpers.loadtest_records import BEGAN_S, CONDITIONS, request_rows, snapshot, spoken, summary


def test_latencies_finals_and_real_time_factor():
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, delays_s=0.3, text="ada lovelace")])
    assert (found["chunks"], found["finals"], found["late_chunks"], found["requests"]) == (3, 2, 0, 3)
    assert found["chunk_latency_ms"]["max"] == pytest.approx(300.0)
    assert found["final_latency_ms"]["p50"] == pytest.approx(300.0)
    assert found["rtfx"] == pytest.approx(0.3 / 10.0)
    assert (found["passed"], found["reasons"], found["seconds"]) == (True, [], 10.0)


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


def test_a_load_that_was_not_attempted_proves_nothing():
    """One request of 100 ms in 10 s is a hundredth of a stream."""
    window = Window(1, 10.0, 20.0)
    found = summarize(window, BEGAN_S, [spoken(11.0)], snapshot(10.0, 1.0), snapshot(20.0, 2.0), CONDITIONS)
    assert found["attempted_streams"] == pytest.approx(0.01)
    assert found["reasons"] == ["only 0.0 of 1 streams attempted: the load generator fell behind"]
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
