"""Prometheus accepts its settings and the alerts."""

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


@pytest.mark.parametrize(
    ("servers", "fires"),
    [({"a": (5, 5), "b": (6, 4)}, True), ({"a": (4, 6), "b": (6, 4)}, False), ({"a": (9, 1)}, False)],
)
def test_an_alert_where_the_streams_of_a_server_have_no_room_on_the_others(promtool, tmp_path, servers, fires):
    """servers: live streams and free slots."""
    alert = "PenstockNoRoomForMoves"
    (rule,) = (
        rule
        for rule in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
        if rule["alert"] == alert
    )
    series = [
        {"series": f'penstock_{name}{{instance="{server}"}}', "values": f"{value}+0x20"}
        for server, values in servers.items()
        for name, value in zip(("streams_live", "slots_free"), values, strict=True)
    ]
    annotations = {name: text.replace("{{ $value }}", "9") for name, text in rule["annotations"].items()}
    alerts = [{"exp_labels": rule["labels"], "exp_annotations": annotations}] if fires else []
    check = {"eval_time": "10m", "alertname": alert, "exp_alerts": alerts}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [check]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [test]}))
    promtool("test", "rules", str(tmp_path / "test.yml"))
