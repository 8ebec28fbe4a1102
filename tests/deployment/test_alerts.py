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


def test_prometheus_accepts_its_settings_and_the_alerts():
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool, of Debian's package prometheus, is not installed")
    done = subprocess.run(
        [promtool, "check", "config", "prometheus.yml"], cwd=FOLDER, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
