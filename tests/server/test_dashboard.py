"""Every metric that the dashboard's queries, Prometheus' settings and the documents name is one that a server shows."""

import json
import re
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from penstock_client import Client
from penstock_gateway.stream.metrics import Metrics
from trials.server.running import RunningServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "penstock.json"
GATEWAY = "penstock_gateway_"
PROMETHEUS = ROOT / "docker" / "prometheus"
ONLY_WITH_A_GPU = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"}
"""Triton shows them where it finds an NVIDIA GPU and its management library; the servers of these tests use neither."""


def queries() -> list[str]:
    """Queries of the dashboard's panels, and of rules if Prometheus is given any."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    for path in PROMETHEUS.glob("*.yml"):
        groups = yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", [])
        found += [rule["expr"] for group in groups for rule in group["rules"]]
    return found


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:penstock|nv)_\w+", text))


def labels_of(name: str, page: str) -> list[str]:
    return re.findall(rf"^{name}\{{(.*)\}} \S+$", page, re.MULTILINE)


@pytest.fixture(scope="module")
def page(server: RunningServer) -> str:
    """Metrics of the server after one stream."""
    with Client(server.url("grpc")) as client:
        client.transcribe(np.zeros(20_000, np.float32))
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as answer:
        return answer.read().decode()


def gateway_names() -> set[str]:
    """Metrics of a gateway."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    families = Metrics().registry.collect()
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, [""])}


def test_the_gateway_has_every_metric_of_the_queries():
    queried = {name for name in names_in(" ".join(queries())) if name.startswith(GATEWAY)}
    assert len(queried) > 3
    assert queried <= gateway_names()


def test_the_server_has_every_metric_of_the_queries(page):
    queried = {name for name in names_in(" ".join(queries())) if not name.startswith(GATEWAY)}
    shown = set(re.findall(r"^(\w+)(?:\{.*\})? \S+$", page, re.MULTILINE))
    assert len(queried) > 15
    assert queried - shown <= ONLY_WITH_A_GPU
    assert queried >= ONLY_WITH_A_GPU, "a name here that no query has"


def test_the_server_has_every_metric_of_the_documents(page):
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`penstock_[^|]*) \|", guide, re.MULTILINE)
    named = set(re.findall(r"`(penstock_\w+)`", " ".join(cells)))
    assert {name for name in named if not name.startswith(GATEWAY)} == set(
        re.findall(r"^(penstock_\w+)(?:\{.*\})? \S+$", page, re.MULTILINE)
    )


@pytest.mark.parametrize("model", ["features", "encoder", "decoder", "asr"])
def test_the_labels_that_queries_choose_by_are_there(page, model):
    chosen = {name for query in queries() for name in re.findall(r"(nv_inference_\w+)\{model[^}]*" + model, query)}
    assert chosen
    for name in chosen:
        assert any(f'model="{model}"' in labels for labels in labels_of(name, page)), name


def test_failures_have_the_reason_that_a_panel_groups_by(page):
    assert any("by (reason)" in query for query in queries())
    assert all('reason="' in labels for labels in labels_of("nv_inference_request_failure", page))
