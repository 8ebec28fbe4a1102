import json
import math

import pytest

from loadtest.json_report import finite
from loadtest.minutes import by_minute
from loadtest.plan import Window
from loadtest.probe import Snapshot
from loadtest.processes import Usage
from loadtest.records import CUT_SHORT, FAILED, REFUSED, Utterance
from loadtest.summary import Setting, summarise
from tests.loadtest.made_up import piece_rows, utterance

SETTING = Setting(references=["ada lovelace", "charles babbage"], chunk_s=0.5, cores=2)
WINDOW = Window(0.01, 10.0, 20.0)
BEGAN_S = 1000.0


def counters(requests: float, of: float = 1.0) -> dict:
    """Of a server whose members each took `requests` requests in half as many batches."""
    times_us = {"request": 9000, "queue": 2000, "compute_input": 100, "compute_infer": 800, "compute_output": 100}
    totals_us = {"asr": 40_000}
    found = {}
    for model in ("features", "encoder", "decoder", "asr"):
        found |= {(model, "request_success"): requests, (model, "exec_count"): requests / 2}
        for part, time_us in times_us.items():
            time_us = totals_us.get(model, time_us) if part == "request" else time_us
            found[(model, f"{part}_duration_us")] = of * requests * time_us
    return found


def snapshot(time_s: float, requests: float | None) -> Snapshot:
    usage = Usage(time_s, 0.3 * time_s)
    return Snapshot(usage, None, "no metrics") if requests is None else Snapshot(usage, counters(requests))


def summary(utterances: list[Utterance], requests: tuple = (100.0, 300.0)) -> dict:
    before, after = (snapshot(moment_s, count) for moment_s, count in zip((10.0, 20.0), requests, strict=True))
    return summarise(WINDOW, BEGAN_S, utterances, before, after, SETTING)


def spoken(*offsets_s: float, delays_s: float = 0.02, **more) -> Utterance:
    """Pieces with deadlines at these seconds of the test, each a chunk, the last one final."""
    rows = [
        {
            "deadline_s": BEGAN_S + offset_s,
            "sent_s": BEGAN_S + offset_s,
            "answered_s": BEGAN_S + offset_s + delays_s,
            "completes_chunk": True,
            "is_last": offset_s == offsets_s[-1],
        }
        for offset_s in offsets_s
    ]
    return utterance(*rows, **more)


def test_latencies_finals_and_real_time_factor():
    found = summary([spoken(11.0, 12.0, text="ada lovelace"), spoken(13.0, delays_s=0.3, text="ada lovelace")])
    assert (found["chunks"], found["finals"], found["late_chunks"], found["pieces"]) == (3, 2, 0, 3)
    assert found["chunk_latency_ms"]["max"] == pytest.approx(300.0)
    assert found["final_latency_ms"]["p50"] == pytest.approx(300.0)
    assert found["rtfx"] == pytest.approx(0.3 / 10.0)
    assert (found["passed"], found["reasons"], found["seconds"]) == (True, [], 10.0)


def test_minutes_tell_when_something_went_wrong():
    """Of a window of 10 s the one minute that has begun; the notes of another time count in none."""
    failed = utterance({"deadline_s": BEGAN_S + 15.0, "sent_s": BEGAN_S + 15.0}, outcome=FAILED)
    late = spoken(13.0, delays_s=0.7)
    assert summary([spoken(11.0, 12.0), late, failed, spoken(30.0, delays_s=9.0)])["minutes"] == [
        {"chunks": 3, "late_chunks": 1, "streams_lost": 1}
    ]
    pieces = [spoken(70.0 * turn, delays_s=0.7) for turn in range(3)]
    assert [minute["late_chunks"] for minute in by_minute(pieces, BEGAN_S, BEGAN_S + 150, 0.5)] == [1, 1, 1]


def test_what_lies_outside_the_window_does_not_count():
    found = summary([spoken(9.0, 9.5, text="wrong"), spoken(20.0, delays_s=9.0), spoken(15.0, text="ada lovelace")])
    assert (found["chunks"], found["utterances"], found["words"]["wer"]) == (1, 1, 0.0)


def test_one_late_chunk_of_two_fails():
    found = summary([spoken(11.0, delays_s=0.51), spoken(12.0)])
    assert (found["late_chunks"], found["late_share"], found["passed"]) == (1, 0.5, False)


def test_refusals_and_errors_are_counted_apart_and_fail_the_trial():
    refused = Utterance(0, REFUSED, "", "ServerFullError: s", 0.05, piece_rows({"sent_s": BEGAN_S + 11}))
    failed = Utterance(0, FAILED, "", "ReplyTimeoutError: s", None, piece_rows({"sent_s": BEGAN_S + 12}))
    found = summary([refused, refused, failed, spoken(13.0, text="ada lovelace")])
    assert found["refusals"]["count"] == 2
    assert found["refusals"]["after_ms"]["p50"] == pytest.approx(50.0)
    assert found["errors"] == {"count": 1, "kinds": {"ReplyTimeoutError": 1}, "examples": ["ReplyTimeoutError: s"]}
    assert (found["chunks"], found["words"]["utterances"]) == (1, 1)
    assert found["reasons"] == ["1 streams failed", "2 streams were refused"]
    assert found["exhausted"][0]["resource"] == "slots"


def test_a_load_that_was_not_offered_proves_nothing():
    """One piece of 100 ms in 10 s is a hundredth of a stream."""
    window = Window(1, 10.0, 20.0)
    found = summarise(window, BEGAN_S, [spoken(11.0)], snapshot(10.0, 1.0), snapshot(20.0, 2.0), SETTING)
    assert found["offered_streams"] == pytest.approx(0.01)
    assert found["reasons"] == [
        "only 0.0 of 1 streams were offered: the load generator started late or fell behind",
    ]
    assert not found["passed"]


def test_word_errors_are_pooled_over_the_utterances_that_were_heard_to_their_end():
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


def test_members_have_their_prediction():
    """200 requests in 100 batches in 10 s: 10 batches a second of 1 ms each, so M/D/1 waits 1 * 0.01 / (2 * 0.99)."""
    encoder = summary([spoken(11.0)])["members"]["encoder"]
    assert (encoder["requests"], encoder["batch"], encoder["batches_per_s"]) == (200, 2, 10)
    assert (encoder["queue_ms"], encoder["compute_ms"]) == pytest.approx((2.0, 1.0))
    assert encoder["predicted_utilisation"] == pytest.approx(0.01)
    assert encoder["predicted_queue_ms"] == pytest.approx(0.01 / 1.98)


def test_the_split_adds_up_to_the_mean_round_trip():
    split = summary([spoken(11.0, delays_s=0.05), spoken(12.0, delays_s=0.07)])["split_ms"]
    assert split["network and client"] == pytest.approx(60.0 - 40.0)
    assert split["encoder: queue"] == pytest.approx(2.0)
    assert split["between members"] == pytest.approx(40.0 - 3 * 3.0)
    assert sum(split.values()) == pytest.approx(60.0)


def test_without_the_server_s_counters_the_rest_is_there_and_says_so():
    found = summary([spoken(11.0)], requests=(None, None))
    assert (found["members"], found["split_ms"], found["metrics_problem"]) == ({}, {}, "no metrics")
    assert found["chunks"] == 1


def test_a_server_that_was_restarted_meanwhile_loses_its_own_figures_alone():
    found = summary([spoken(11.0)], requests=(300.0, 100.0))
    assert found["members"] == {} and "the server was restarted meanwhile" in found["metrics_problem"]
    assert found["chunks"] == 1


def test_a_window_in_which_nothing_happened_does_not_pass_and_fits_into_json():
    found = summary([])
    assert (found["passed"], found["words"]["wer"], found["late_share"]) == (False, None, 0.0)
    assert "null" in json.dumps(finite(found), allow_nan=False)


def test_answers_that_never_came_fail_it():
    lost = utterance({"deadline_s": BEGAN_S + 11, "sent_s": BEGAN_S + 11, "answered_s": math.inf}, outcome=CUT_SHORT)
    found = summary([lost, spoken(12.0)])
    assert (found["unanswered_pieces"], found["late_chunks"], found["passed"]) == (1, 1, False)
