"""Two servers, two gateways, HAProxy and Prometheus in containers: faults of a server under ten live streams."""

import asyncio
import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.helpers.containers import (
    ROOT,
    Composition,
    docker,
    gateway_metrics,
    inspect,
    servers_up,
    wait_until,
    wait_until_healthy,
)
from trials.attacks import OTHER
from trials.edge_check import is_ready, make_certificate, upload
from trials.server.fleet import IDLE_S, moves_told
from trials.server.fleet_streams import KINDS, disturb, make_streams, undisturbed

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
_STREAMS, _SLOTS = 10, 16
_SILENCE_S = 25.0
_LIVE = [kind for kind in KINDS if kind != "file"]
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"


REPLICAS = 2
_TIMEOUT_S = 10
"""Limit of the gateways, four times the default: beside other programs the only server that is left may be late."""


class ContainerFleet:
    """Files of a composition with an edge: docker/edge/haproxy.cfg and docker/prometheus as they are."""

    key: str | None = OTHER
    gateway_fault_s = 0.0

    def __init__(self, composition: Composition, slots: int, folder: Path):
        """Starts it; slots: of a server. The folder takes the certificate."""
        certificate = make_certificate(folder)
        certificate.chmod(0o644)
        self.slots = slots
        self.certificate = folder / "cert.pem"
        self.composition = Composition(
            composition.environment
            | {
                "PENSTOCK_GATEWAY_REPLICAS": "dns:server:8001",
                "PENSTOCK_IDLE_SECONDS": f"{IDLE_S:g}",
                "PENSTOCK_MAX_STREAMS": str(slots),
                "GATEWAY_TIMEOUT_S": str(_TIMEOUT_S),
                "EDGE_CERTIFICATE": str(certificate),
            }
        )
        scales = [word for name in ("server", "gateway") for word in ("--scale", f"{name}={REPLICAS}")]
        self.composition.up(*scales, "server", "gateway", "prometheus")
        self.servers = self.composition.containers("server")
        self.gateways = self.composition.containers("gateway")
        for number, gateway in enumerate(self.gateways, 1):
            self.composition.environment[f"GATEWAY_{number}"] = inspect(gateway)["Name"].removeprefix("/")
        self.composition.up("--no-deps", "edge")
        self.http = self.grpc = self.composition.address("edge", 8000)
        self.tls = self.composition.address("edge", 8443)
        wait_until(lambda: is_ready(self.http), "no gateway behind the edge")
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Waits until each gateway has all servers."""
        wait_until_healthy(self.servers)
        for gateway in self.gateways:
            wait_until(lambda one=gateway: servers_up(one) == REPLICAS, "a server is not up for a gateway")

    def moves(self) -> tuple[float, float]:
        """Streams moved, and seconds sent again."""
        found = [moves_told(gateway_metrics(gateway)) for gateway in self.gateways]
        return sum(moved for moved, _ in found), sum(replayed_s for _, replayed_s in found)

    def wait_until_moved(self, before: float) -> None:
        """Waits until more streams have moved than before."""
        wait_until(lambda: self.moves()[0] > before, "no stream moves")

    def query(self, expression: str) -> list[float]:
        """The values of an expression in Prometheus."""
        return [float(one["value"][1]) for one in self.prometheus("query", query=expression)["result"]]

    def prometheus(self, what: str, **parameters: str) -> dict:
        """The data of a call of Prometheus's HTTP API, version 1."""
        address = self.composition.address("prometheus", 9090)
        url = f"http://{address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]


def kill(fleet: ContainerFleet, server: str) -> None:
    """SIGKILL, upon which Docker does not start it again by itself."""
    docker("kill", server)
    docker("start", server)


def pause(fleet: ContainerFleet, server: str) -> None:
    """All processes are frozen until streams have moved: connections stay open, nothing answers."""
    before = fleet.moves()[0]
    docker("pause", server)
    fleet.wait_until_moved(before)
    docker("unpause", server)


def disconnect(fleet: ContainerFleet, server: str) -> None:
    """Takes its network until streams have moved: packets are lost, and its address leaves the name."""
    before, network = fleet.moves()[0], f"{fleet.composition.project}_default"
    docker("network", "disconnect", network, server)
    fleet.wait_until_moved(before)
    docker("network", "connect", "--alias", "server", network, server)


FAULTS: dict[str, Callable[[ContainerFleet, str], None]] = {
    fault.__name__: fault for fault in (kill, pause, disconnect)
}
"""By name: what disturbs the container of a server, and ends. `wait_until_up` waits until all is as before."""


@pytest.fixture(scope="module")
def fleet(composition, tmp_path_factory) -> Iterator[ContainerFleet]:
    """Starts the fleet."""
    try:
        yield ContainerFleet(composition, _SLOTS, tmp_path_factory.mktemp("edge"))
    finally:
        composition.down()


@pytest.fixture(scope="module")
def streams(recordings):
    """Ten live ones of all kinds."""
    return make_streams(recordings, _STREAMS, _SILENCE_S, _LIVE)


@pytest.fixture(scope="module")
def expected(fleet, streams):
    """Words of the streams without a fault."""
    return asyncio.run(undisturbed(fleet, streams))


def test_uploads_over_tls_have_the_words(fleet, recordings):
    assert upload(fleet.tls, recordings[0].path, fleet.certificate) == recordings[0].expected.text


def test_prometheus_reads_all_servers_and_gateways_and_the_alerts(fleet):
    def targets() -> Counter[tuple[str, str]]:
        found = fleet.prometheus("targets", state="active")["activeTargets"]
        return Counter((target["labels"]["job"], target["health"]) for target in found)

    all_up = Counter({("penstock", "up"): REPLICAS, ("gateway", "up"): REPLICAS})
    wait_until(lambda: targets() == all_up, "not all targets are up")
    (rules,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    names = [rule["alert"] for rule in rules["rules"]]

    def read() -> list[tuple[str, str]]:
        (group,) = fleet.prometheus("rules")["groups"]
        return [(rule["name"], rule["health"]) for rule in group["rules"]]

    wait_until(lambda: read() == [(name, "ok") for name in names], "not all alerts are evaluated")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_server_costs_no_word(fleet, streams, expected, figures, fault):
    server = fleet.servers[0]

    def work() -> None:
        FAULTS[fault](fleet, server)
        fleet.wait_until_up()

    found = disturb(fleet, streams, expected, work)
    assert not inspect(server)["State"]["OOMKilled"]
    free = REPLICAS * _SLOTS
    wait_until(lambda: fleet.query("sum(penstock_slots_free)") == [free], "slots are not free")
    wait_until(lambda: fleet.query("sum(penstock_gateway_replay_bytes)") == [0], "audio is kept for moves")
    moved = f"{found['moved']} streams moved, {found['replayed_s_per_stream']:.1f} s each"
    late = f"text late by {found['text_late_s_max']:.1f} s, before by {found['text_late_before_s_max']:.1f} s"
    equal = f"{found['words'] - found['words_changed']} of {found['words']} words equal"
    figures.append((f"{fault} of one of two servers", f"{moved}; {late}; {equal}"))


def test_an_alert_fires_while_a_server_does_not_answer(fleet):
    docker("pause", fleet.servers[0])
    firing = 'ALERTS{alertname="PenstockServerDown", alertstate="firing"}'
    try:
        wait_until(lambda: fleet.query(firing) == [1], "the alert does not fire")
    finally:
        docker("unpause", fleet.servers[0])
    wait_until(lambda: not fleet.query(firing), "the alert does not end")
