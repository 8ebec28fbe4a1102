"""Prometheus accepts its settings and the alerts."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docker" / "prometheus"


def rules() -> dict[str, dict]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_each_alert_says_what_to_do():
    for rule in rules().values():
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
    recorded = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))


def rooms(**servers: tuple[int, int]) -> dict[str, int]:
    """Live streams and free slots of servers."""
    names = ("streams_live", "slots_free")
    return {
        f'penstock_{name}{{instance="{server}"}}': value
        for server, values in servers.items()
        for name, value in zip(names, values, strict=True)
    }


def up(job: str, **servers: int) -> dict[str, int]:
    """Whether the last scrape of servers succeeded."""
    return {f'up{{job="{job}", instance="{server}"}}': value for server, value in servers.items()}


def gateway(name: str, value: int | str, **labels: str) -> dict[str, int | str]:
    """A metric of the gateway c."""
    text = ", ".join(f'{label}="{of}"' for label, of in {"instance": "c", **labels}.items())
    return {f"penstock_gateway_{name}{{{text}}}": value}


BUILD = gateway("build_info", 1, version="1.0") | gateway("replicas_up", 1, instance="d", group="en")
"""A gateway without a metric of its replicas, beside one with a replica."""
ENGLISH, FILE = {"group": "en"}, {"file": "keys"}
NO_ROOM, MOVED = "9 slots are free, fewer than one server has", "c moved streams from a server that failed: LOST"
EXPIRES, EXPIRES_SOON = "PenstockCertificateExpires", "PenstockCertificateExpiresSoon"
EXPIRY, DAY_S = "certificate_not_after_timestamp_seconds", 86_400


@pytest.mark.parametrize(
    ("name", "series", "labels", "summary"),
    [
        ("PenstockNoRoomForMoves", rooms(a=(5, 5), b=(6, 4)), {}, NO_ROOM),
        ("PenstockNoRoomForMoves", rooms(a=(4, 6), b=(6, 4)), {}, ""),
        ("PenstockServerDown", up("penstock", a=1, b=1) | up("gateway", c=0), {}, ""),
        ("PenstockServerDown", up("penstock", a=1, b=0), {"job": "penstock", "instance": "b"}, "b does not answer"),
        ("PenstockServerDown", up("gateway", c=1), {"job": "penstock"}, "No server is running"),
        ("PenstockGatewayDown", up("gateway", c=0), {"job": "gateway", "instance": "c"}, "c does not answer"),
        ("PenstockGatewayWithoutReplica", BUILD | gateway("replicas_up", 1, **ENGLISH), {}, ""),
        (
            "PenstockGatewayWithoutReplica",
            BUILD | gateway("replicas_up", 1, **ENGLISH) | gateway("replicas_up", 0, group="de"),
            {"instance": "c", "group": "de"},
            "c has no replica for de",
        ),
        ("PenstockGatewayWithoutReplica", BUILD, {"instance": "c", "version": "1.0"}, "c has no replica"),
        ("PenstockStreamsMoved", gateway("streams_moved_total", "0 0 0 0 0 5", reason="SERVER_DRAINING"), {}, ""),
        (
            "PenstockStreamsMoved",
            gateway("streams_moved_total", "0 0 0 0 0 5", reason="LOST"),
            {"instance": "c", "reason": "LOST"},
            MOVED,
        ),
        (
            "PenstockGatewayFileRejected",
            gateway("file_reload_successful", "1 1 0", **FILE),
            {"instance": "c", **FILE},
            "c rejects a new file: keys",
        ),
        (EXPIRES_SOON, gateway(EXPIRY, 13 * DAY_S), {"instance": "c"}, "c has a certificate for 12d 23h 50m 0s"),
        (EXPIRES, gateway(EXPIRY, 2 * DAY_S), {"instance": "c"}, "c has a certificate for 1d 23h 50m 0s"),
    ],
)
def test_what_an_alert_is_10_minutes_after_its_series_began(promtool, tmp_path, name, series, labels, summary):
    """series: values from the Unix time 0, the last one kept. labels, summary: of the alert, if it fires."""
    rule = rules()[name]
    fired = {"exp_labels": rule["labels"] | labels, "exp_annotations": rule["annotations"] | {"summary": summary}}
    alert = {"eval_time": "10m", "alertname": name, "exp_alerts": [fired] if summary else []}
    values = [{"series": one, "values": re.sub(r"(\S+)$", r"\1+0x20", str(value))} for one, value in series.items()]
    test = {"interval": "1m", "input_series": values, "alert_rule_test": [alert]}
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": [test]}), encoding="utf-8"
    )
    promtool("test", "rules", str(tmp_path / "test.yml"))
