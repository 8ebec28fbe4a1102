import math

import pytest

from loadtest.options import Window
from loadtest.player import CUT_SHORT, FAILED, REJECTED, Utterance
from loadtest.summary import MAX_P99_LAG_MS, check_generator, latencies_s, reasons_to_fail, summarize
from tests.helpers.loadtest_records import BEGAN_S, CONDITIONS, machine, request_rows, snapshot, spoken, summary


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
    found = summary([spoken(11.0, 12.0), spoken(13.0, delays_s=math.inf)])
    assert (found["chunks"], found["late_chunks"]) == (3, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"late": 2}, "2 of 1000 chunks late"),
        ({"p95_final_s": 1.001}, "above 1 s"),
        ({"errors": 1}, "1 streams failed"),
        ({"rejections": 3}, "3 streams were rejected"),
        ({"chunks": 0, "late": 0}, "too short"),
        ({"attempted": 57.5}, "only 57.5 of 64 streams attempted"),
    ],
)
def test_each_limit_fails_a_trial_by_itself(change, reason):
    (found,) = reasons_to_fail(**GOOD | change)
    assert reason in found


@pytest.mark.parametrize(
    ("lag_ms", "use", "is_bottleneck", "text"),
    [
        (MAX_P99_LAG_MS, machine(busiest=0.99), False, "on schedule: p99 of its lag 20.0 ms"),
        (20.1, machine(busiest=0.95), True, "used 0.95 cores"),
        (50.0, machine(cores=2, encoder=0.5, other_cores=1.5), True, "other programs 1.50 of 2"),
        (math.nan, machine(), False, "sent nothing"),
    ],
)
def test_the_load_generator_is_judged_by_its_lag(lag_ms, use, is_bottleneck, text):
    found, why = check_generator(lag_ms, use)
    assert found == is_bottleneck and text in why
