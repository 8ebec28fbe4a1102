"""Prometheus accepts its settings and the alerts."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docker" / "prometheus"


def test_each_alert_says_what_to_do():
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    assert len(group["rules"]) > 3
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["for"]
        assert {"summary", "description"} == rule["annotations"].keys()


@pytest.fixture
def promtool():
    if (found := shutil.which("promtool")) is None:
        pytest.skip("promtool, of Debian's package prometheus, is not installed")

    def run(*arguments):
        done = subprocess.run([found, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_prometheus_accepts_its_settings_and_the_alerts(promtool):
    promtool("check", "config", "prometheus.yml")


@pytest.fixture
def check_alert(promtool, tmp_path):
    """Checks what an alert is 10 minutes after its series began."""

    def check(name: str, series: dict[str, int | str], fires: bool, labels: dict[str, str], summary: str) -> None:
        """series: values, the last one kept. labels, summary: of the alert, if it fires."""
        rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
        (rule,) = (rule for rule in rules if rule["alert"] == name)
        told = {"exp_labels": rule["labels"] | labels, "exp_annotations": rule["annotations"] | {"summary": summary}}
        alert = {"eval_time": "10m", "alertname": name, "exp_alerts": [told] if fires else []}
        values = [{"series": one, "values": re.sub(r"(\S+)$", r"\1+0x20", str(value))} for one, value in series.items()]
        test = {"interval": "1m", "input_series": values, "alert_rule_test": [alert]}
        text = yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [test]})
        (tmp_path / "test.yml").write_text(text)
        promtool("test", "rules", str(tmp_path / "test.yml"))

    return check


@pytest.mark.parametrize(
    ("servers", "fires"),
    [({"a": (5, 5), "b": (6, 4)}, True), ({"a": (4, 6), "b": (6, 4)}, False), ({"a": (9, 1)}, False)],
)
def test_an_alert_where_the_streams_of_a_server_have_no_room_on_the_others(check_alert, servers, fires):
    """servers: live streams and free slots."""
    series = {
        f'penstock_{name}{{instance="{server}"}}': value
        for server, values in servers.items()
        for name, value in zip(("streams_live", "slots_free"), values, strict=True)
    }
    check_alert("PenstockNoRoomForMoves", series, fires, {}, "9 slots are free, fewer than one server has")


@pytest.mark.parametrize(
    ("servers", "fires", "labels", "summary"),
    [
        ({"a:8002": 1, "b:8002": 1}, False, {}, ""),
        ({"a:8002": 1, "b:8002": 0}, True, {"job": "penstock", "instance": "b:8002"}, "b:8002 does not answer"),
        ({}, True, {"job": "penstock"}, "No server is running"),
    ],
)
def test_an_alert_where_a_server_does_not_answer_or_none_has_a_name(check_alert, servers, fires, labels, summary):
    """servers: whether the last scrape succeeded."""
    series = {f'up{{job="penstock", instance="{server}"}}': value for server, value in servers.items()}
    check_alert("PenstockServerDown", series | {'up{job="gateway", instance="c:8081"}': 1}, fires, labels, summary)


@pytest.mark.parametrize(("reason", "fires"), [("CONNECTION_LOST", True), ("SERVER_DRAINING", False)])
def test_an_alert_where_streams_moved_from_a_server_that_failed(check_alert, reason, fires):
    labels = {"instance": "c:8081", "reason": reason}
    series = f'penstock_gateway_streams_moved_total{{instance="c:8081", reason="{reason}"}}'
    summary = f"c:8081 moved streams from a server that failed: {reason}"
    check_alert("PenstockStreamsMoved", {series: "0 0 0 0 0 5"}, fires, labels, summary)
