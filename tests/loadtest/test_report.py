"""Markdown and the report of a search, from synthetic windows."""

import json

from loadtest.capacity import capacity_document
from loadtest.report import report_document, to_markdown
from penstock.reporting import finite
from tests.helpers.loadtest_records import spoken, summary


def window(streams: float = 2, delays_s: float = 0.02, requests: tuple = (100.0, 300.0)) -> dict:
    return summary([spoken(11.0, 12.0, delays_s=delays_s, text="ada <b>")], requests) | {"streams": streams}


def document(*windows: dict) -> dict:
    return report_document({}, {}, list(windows))


def test_the_report_begins_with_what_passed_and_what_did_not():
    passed, failed = window(2), window(4, delays_s=1.2)
    result = to_markdown(document(passed, failed)).partition("## ")[0]
    assert result.startswith("# Load test: not passed") and "\n2 streams PASS: 0 of " in result
    assert "\n4 streams FAIL: 2 of 2 chunks late" in result and "  because: 2 of 2 chunks late" in result
    soak = {"passed": False, "lines": ["FAIL: 1.0 minutes"]}
    result = to_markdown(document(passed) | {"soak": soak}).partition("## ")[0]
    assert result.startswith("# Load test: not passed") and "FAIL: 1.0 minutes\n2 streams PASS" in result


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
    assert [trial["streams"] for trial in found["capacity"]["trials"]] == [16, 32, 24, 16]
    assert [window["streams"] for window in found["windows"]] == [16, 16, 24, 32]
    assert json.loads(json.dumps(finite(found)))["capacity"]["confirmation_s"] == 120.0
