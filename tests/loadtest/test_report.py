"""JSON, HTML, plots, lines and the report of a search, from synthetic windows."""

import json
import math
import re

import pytest

from loadtest import plots
from loadtest.capacity import SearchPlan, capacity_document, slots_for
from loadtest.html_report import render, write_html
from loadtest.report import finite, make_folder, number, report_document, summary_sentence, window_lines, write_json
from penstock.errors import PenstockError
from tests.helpers.loadtest_records import spoken, summary

PLAN = SearchPlan(first=16, max_streams=512, trial_s=30.0, confirmation_s=120.0, resolution=0.05)


@pytest.fixture
def draw_plots() -> None:
    """For the tests that want them, which take a second each."""


@pytest.fixture(autouse=True)
def no_plots(request, monkeypatch) -> None:
    if "draw_plots" not in request.fixturenames:
        monkeypatch.setattr(plots, "_svg", lambda draw, height=0.0: "<svg/>")


def window(streams: float = 2, delays_s: float = 0.02, requests: tuple = (100.0, 300.0)) -> dict:
    return summary([spoken(11.0, 12.0, delays_s=delays_s, text="ada <b>")], requests) | {"streams": streams}


def document(*windows: dict) -> dict:
    options = {"url": "localhost:1", "streams": "2,4", "unknown": 1}
    return report_document(options, {"server": {"model": "tiny"}, "command": "loadtest run"}, list(windows))


def test_json_and_back(tmp_path):
    path = tmp_path / "new" / "loadtest.json"
    write_json(path, document(window() | {"worst": math.inf}))
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["windows"][0]["worst"] is None
    assert report["options"] == {"url": "localhost:1", "streams": "2,4"}
    assert report["circumstances"]["command"] == "loadtest run"
    assert {"date", "hardware", "commit", "packages", "load_average"} <= set(report["circumstances"])
    assert report["server"] == {"model": "tiny"}


def test_a_report_that_cannot_be_written_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (write_json, write_html):
        with pytest.raises(PenstockError, match="file"):
            write(tmp_path / "file" / "loadtest.out", document(window()))


def test_finite_keeps_everything_else():
    assert finite({1: [1, 2.5, math.nan, "x", None, True], "a": (math.inf,)}) == {
        "1": [1, 2.5, None, "x", None, True],
        "a": [None],
    }


def test_the_page_is_one_file_with_every_figure_and_its_plots(draw_plots):
    pytest.importorskip("matplotlib")
    page = render(document(window(2), window(4, delays_s=0.9) | {"begin_s": 20.0}))
    assert page.count('src="data:image/svg+xml;base64,') == 4  # latency and queue against streams, over time, parts
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "2 streams PASS" in page and "4 streams FAIL" in page
    assert "tiny" in page and "900" in page


def test_one_window_has_a_histogram_and_a_series_and_no_curve_of_one_point(draw_plots):
    pytest.importorskip("matplotlib")
    drawn = [re.sub(r"<!--|-->", "", text) for text in plots.draw_all(finite([window()]))]
    assert ["chunk to words" in text for text in drawn] == [True, False, False]
    assert ["Over time" in text for text in drawn] == [False, True, False]
    assert ["Parts of one request" in text for text in drawn] == [False, False, True]


def test_trials_of_a_search_are_not_one_test():
    assert plots.is_one_test([window(2), window(4) | {"begin_s": 20.0}])
    assert not plots.is_one_test([window(2), window(4)])


def test_the_summary_says_what_passed_and_what_did_not():
    passed, failed = window(2), window(4, delays_s=1.2)
    assert summary_sentence(document(passed)) == (
        "2 streams ran in real time for 10 s: half of the words came within 20 ms of their chunk, 95 % within 20 ms, "
        "and 95 % of the final texts within 20 ms of the end of the audio."
    )
    assert "of the audio; but 4 streams did not pass: 2 of 2 chunks late" in summary_sentence(document(failed, passed))
    assert summary_sentence(document(failed)).startswith("4 streams did not pass: 2 of 2 chunks late")
    soak = {"passed": False, "reasons": ["encoder grows"], "lines": []}
    assert summary_sentence(document(passed) | {"soak": soak}).endswith("; the soak did not pass: encoder grows.")


@pytest.mark.parametrize(("delays_s", "verdict"), [(0.02, "passed"), (1.2, "not passed")])
def test_the_page_begins_with_the_verdict_and_the_summary(delays_s, verdict):
    report = document(window(2, delays_s=delays_s))
    page = render(report)
    assert f'{verdict}</span></h1>\n<p class="summary">{summary_sentence(report)}</p>' in page


def test_what_the_server_sent_is_text_and_no_markup():
    bad = window() | {"reasons": ["<script>alert(1)</script>"]}
    assert "<script>" not in render(document(bad))


def test_a_page_without_the_server_s_counters_has_the_plots_that_are_left():
    page = render(document(window(requests=(None, None))))
    assert page.count("data:image/svg") == 2
    assert "no queue and compute times: no metrics" in page


def test_the_lines_say_what_failed_and_why():
    lines = window_lines(finite(window(4, delays_s=1.2)))
    assert lines[0].startswith("4 streams FAIL: 2 of 2 chunks late, end to final 1200/1200/1200 ms")
    assert [line for line in lines if "because" in line] == [
        "  because: 2 of 2 chunks late, 0.1 % are allowed",
        "  because: p95 of end of audio to final text above 1 s",
    ]
    assert lines[-1] == "  CPU steal 0.0 %"


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_an_unknown_figure_is_a_dash(unknown):
    assert (number(unknown), number(1.25, 1)) == ("-", "1.2")


def search_report(*trials: tuple[float, float]) -> dict:
    """The report of trials of (streams, delay)."""
    return {"format": "x", "windows": [window(streams, delay_s) for streams, delay_s in trials]}


def test_the_capacity_names_its_limit():
    reports = [search_report(trial) for trial in ((16, 0.02), (32, 2.0), (24, 2.0), (16, 0.02))]
    found = capacity_document(reports, 16, PLAN)
    assert found["capacity"]["streams"] == 16
    text = found["capacity"]["text"]
    assert text.startswith("maximum sustained streams (120 s): 16. At 24 streams: 2 of 2 chunks late")
    assert found["capacity"]["limit"]["streams"] == 24
    assert "bottleneck: queue of" in text
    assert [trial["streams"] for trial in found["capacity"]["trials"]] == [16, 32, 24, 16]
    assert [window["streams"] for window in found["windows"]] == [16, 16, 24, 32]
    assert json.loads(json.dumps(finite(found)))["capacity"]["confirmation_s"] == 120.0


def test_a_capacity_at_the_end_of_the_search_says_so():
    text = capacity_document([search_report((512, 0.02))], 512, PLAN)["capacity"]["text"]
    assert text == "maximum sustained streams (120 s): 512, the largest number tried; no bottleneck"


def test_no_capacity_at_all():
    text = capacity_document([search_report((1, 2.0))], 0, PLAN)["capacity"]["text"]
    assert text.startswith("maximum sustained streams (120 s): 0. At 1 streams")


def test_the_capacity_is_on_the_page():
    found = capacity_document([document(window(1, delays_s=2.0))], 0, PLAN)
    page = render(found)
    assert "<h2>Trials</h2>" in page
    assert '<p class="summary">Maximum sustained streams (120 s): 0. At 1 streams' in page


def test_a_server_has_more_slots_than_streams():
    assert all(slots_for(streams) > streams for streams in range(1, 2000))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match=r"--out: .*file: "):
        make_folder(tmp_path / "file")
