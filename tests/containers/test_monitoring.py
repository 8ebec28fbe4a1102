"""The profile `monitoring` in containers: Prometheus has figures of server and gateway, Grafana the dashboard."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.helpers.containers import Composition, docker, try_docker, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
SERVICES = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text(encoding="utf-8"))["services"]
BUILD = ("build", "--network", "{BUILD_NETWORK}", "--build-arg", "PYTHON_IMAGE={PYTHON_IMAGE}", "--tag")


def missing(service: str) -> str:
    """Why its image is not to be had; empty where it is there."""
    image = SERVICES[service]["image"]
    if try_docker("image", "inspect", image).returncode == 0:
        return ""
    pulled = try_docker("pull", "--quiet", image)
    return f"{image} is not to be had: {pulled.stderr.strip()}" if pulled.returncode else ""


@pytest.fixture(scope="module")
def monitored(composition, figures) -> Iterator[Composition]:
    """Server, gateway and Prometheus: the image that compose.yaml names, else one of Debian's package."""
    why = missing("prometheus")
    image = SERVICES["prometheus"]["image"]
    if why:
        image = f"{composition.project}:prometheus"
        build = [word.format(**composition.environment) for word in BUILD]
        docker(*build, image, "-", input_text=Path(__file__).with_name("prometheus.Dockerfile").read_text())
    figures.append(("Prometheus", f"{why}: Debian's package" if why else image))
    made = Composition({**composition.environment, "PROMETHEUS_IMAGE": image})
    made.up("server", "gateway", "prometheus")
    yield made
    made.down()


def ask(address: str, query: str) -> list[dict]:
    """What Prometheus answers."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=60) as page:
        return json.load(page)["data"]["result"]


def test_prometheus_has_the_figures_of_server_and_gateway_and_the_alerts(monitored):
    address = monitored.address("prometheus", 9090)
    for query in ('up{job="penstock"} == 1', 'up{job="gateway"} == 1', "penstock_slots_free == 64"):
        wait_until(lambda query=query: ask(address, query), f"no result of {query}")
    with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=60) as page:
        assert [group for group in json.load(page)["data"]["groups"] if group["rules"]]


def test_grafana_has_the_dashboard(monitored):
    if why := missing("grafana"):
        pytest.skip(why)
    monitored.up("grafana")
    with urllib.request.urlopen(f"http://{monitored.address('grafana', 3000)}/api/search", timeout=60) as page:
        assert "penstock" in json.dumps(json.load(page)).lower()
