"""Prometheus accepts its settings and the alerts."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docker" / "prometheus"
_EXPIRY = "certificate_not_after_timestamp_seconds"


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


def test_prometheus_accepts_the_queries_of_the_dashboard_for_the_chosen_instances(promtool, tmp_path):
    panels = json.loads((FOLDER.parent / "grafana" / "dashboards" / "penstock.json").read_text())["panels"]
    queries = [target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]]
    for query in queries:
        assert query.count("penstock_") + query.count("nv_") == len(re.findall(r'=~"\$(instance|gateway)"', query)), (
            query
        )
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))


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


@pytest.mark.parametrize("value", [1, 0])
def test_an_alert_where_a_gateway_does_not_answer(check_alert, value):
    labels = {"job": "gateway", "instance": "c:8081"}
    series = {'up{job="gateway", instance="c:8081"}': value, 'up{job="penstock", instance="a:8002"}': 0}
    check_alert("PenstockGatewayDown", series, not value, labels, "c:8081 does not answer")


@pytest.mark.parametrize(
    ("up", "labels", "summary"),
    [
        ({"en": 1, "de": 2}, None, ""),
        ({"en": 1, "de": 0}, {"group": "de"}, "c:8081 has no replica for de"),
        ({}, {"version": "1.0"}, "c:8081 has no replica"),
    ],
)
def test_an_alert_where_a_gateway_has_no_replica_or_never_had_one(check_alert, up, labels, summary):
    """up: replicas of each group that has ever answered."""
    series = {f'penstock_gateway_replicas_up{{instance="c:8081", group="{name}"}}': count for name, count in up.items()}
    series |= {'penstock_gateway_build_info{instance="c:8081", version="1.0"}': 1}
    series |= {'penstock_gateway_replicas_up{instance="d:8081", group="en"}': 1}
    expected = {"instance": "c:8081"} | (labels or {})
    check_alert("PenstockGatewayWithoutReplica", series, bool(summary), expected, summary)


@pytest.mark.parametrize(("reason", "fires"), [("CONNECTION_LOST", True), ("SERVER_DRAINING", False)])
def test_an_alert_where_streams_moved_from_a_server_that_failed(check_alert, reason, fires):
    labels = {"instance": "c:8081", "reason": reason}
    series = f'penstock_gateway_streams_moved_total{{instance="c:8081", reason="{reason}"}}'
    summary = f"c:8081 moved streams from a server that failed: {reason}"
    check_alert("PenstockStreamsMoved", {series: "0 0 0 0 0 5"}, fires, labels, summary)


@pytest.mark.parametrize(
    ("name", "metric", "value", "summary"),
    [
        ("PenstockGatewayFileRejected", "file_reload_successful", "1 1 0", "rejects a new file: keys"),
        ("PenstockGatewayFileRejected", "file_reload_successful", "1 0 1", ""),
        ("PenstockCertificateExpiresSoon", _EXPIRY, 13 * 86_400, "has a certificate for 12d 23h 50m 0s"),
        ("PenstockCertificateExpires", _EXPIRY, 2 * 86_400, "has a certificate for 1d 23h 50m 0s"),
        ("PenstockCertificateExpires", _EXPIRY, 4 * 86_400, ""),
    ],
)
def test_alerts_of_the_files_of_a_gateway(check_alert, name, metric, value, summary):
    """10 minutes after the Unix time 0."""
    labels = {"instance": "c:8081", "file": "keys"}
    series = f'penstock_gateway_{metric}{{instance="c:8081", file="keys"}}'
    check_alert(name, {series: value}, bool(summary), labels, f"c:8081 {summary}")
