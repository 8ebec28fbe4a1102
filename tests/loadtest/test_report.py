"""JSON, Markdown, lines and the report of a search, from synthetic windows."""

import json
import math

import pytest

from loadtest.capacity import capacity_document
from loadtest.report import (
    report_document,
    summary_sentence,
    targets_table,
    write_report,
)
from penstock.errors import PenstockError
from penstock.reporting import finite
from tests.helpers.loadtest_records import spoken, summary


def window(streams: float = 2, delays_s: float = 0.02, requests: tuple = (100.0, 300.0)) -> dict:
    return summary([spoken(11.0, 12.0, delays_s=delays_s, text="ada <b>")], requests) | {"streams": streams}


def document(*windows: dict) -> dict:
    options = {"url": "localhost:1", "streams": "2,4", "unknown": 1}
    return report_document(options, {"server": {"model": "tiny"}, "command": "loadtest run"}, list(windows))


def test_json_and_back(tmp_path):
    path = tmp_path / "new" / "loadtest.json"
    write_report(path, document(window() | {"worst": math.inf}))
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["windows"][0]["worst"] is None
    assert report["options"] == {"url": "localhost:1", "streams": "2,4"}
    assert report["circumstances"]["command"] == "loadtest run"
    assert {"date", "hardware", "commit", "packages", "load_average"} <= set(report["circumstances"])
    assert report["server"] == {"model": "tiny"}
    assert path.with_suffix(".md").read_text(encoding="utf-8").startswith("# Load test: passed\n")
    assert not path.with_suffix(".png").exists(), "one number of streams is no curve"
    write_report(path, document(window(2), window(4)))
    assert path.with_suffix(".png").stat().st_size > 1000


def test_a_report_that_cannot_be_written_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match="file"):
        write_report(tmp_path / "file" / "loadtest.out", document(window()))


def test_targets_are_compared_with_the_first_one():
    direct, gateway = document(window(2), window(4)), document(window(2, delays_s=0.05), window(4, delays_s=0.3))
    for each in gateway["windows"]:
        each["gateway_us_per_100_ms"] = 198.4
    table = targets_table([("direct", finite(direct)), ("gateway-riva", finite(gateway))])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [(row[0], row[1], row[5], row[7], row[8]) for row in cells] == [
        ("direct", "2", "20.0", "", "-"),
        ("direct", "4", "20.0", "", "-"),
        ("gateway-riva", "2", "50.0", "+30.0", "198"),
        ("gateway-riva", "4", "300.0", "+280.0", "198"),
    ]


def test_targets_that_take_turns_are_compared_by_their_medians():
    runs = [("direct", 0.02), ("direct+speakers", 0.03), ("direct", 0.04), ("direct+speakers", 0.06), ("direct", 0.03)]
    table = targets_table([(name, finite(document(window(2, delays_s=delay_s)))) for name, delay_s in runs])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [(row[0], row[5], row[7]) for row in cells] == [
        ("direct", "20.0", ""),
        ("direct", "40.0", ""),
        ("direct", "30.0", ""),
        ("direct, median", "30.0", ""),
        ("direct+speakers", "30.0", "+0.0"),
        ("direct+speakers", "60.0", "+30.0"),
        ("direct+speakers, median", "45.0", "+15.0"),
    ]


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


def search_report(*trials: tuple[float, float]) -> dict:
    """The report of trials of (streams, delay)."""
    return {"format": "x", "windows": [window(streams, delay_s) for streams, delay_s in trials]}


def test_the_capacity_names_its_limit():
    reports = [search_report(trial) for trial in ((16, 0.02), (32, 2.0), (24, 2.0), (16, 0.02))]
    found = capacity_document(reports, 16, 120.0)
    assert found["capacity"]["streams"] == 16
    text = found["capacity"]["text"]
    assert text.startswith("maximum sustained streams (120 s): 16. At 24 streams: 2 of 2 chunks late")
    assert found["capacity"]["limit"]["streams"] == 24
    assert "bottleneck: queue of" in text
    assert [trial["streams"] for trial in found["capacity"]["trials"]] == [16, 32, 24, 16]
    assert [window["streams"] for window in found["windows"]] == [16, 16, 24, 32]
    assert json.loads(json.dumps(finite(found)))["capacity"]["confirmation_s"] == 120.0
