"""Two servers, two gateways, HAProxy and Prometheus in containers: faults of a server under ten live streams."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from tests.helpers.container_fleet import FAULTS, REPLICAS, ContainerFleet
from tests.helpers.containers import ROOT, docker, inspect, wait_until
from tests.helpers.golden import golden_utterances
from trials.edge_check import upload
from trials.server.fleet_streams import KINDS, disturb, make_streams, undisturbed

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
_STREAMS, _SLOTS = 10, 16
_SILENCE_S = 25.0
_LIVE = [kind for kind in KINDS if kind != "file"]
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"


@pytest.fixture(scope="module")
def fleet(composition, tmp_path_factory) -> Iterator[ContainerFleet]:
    """It is up."""
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
    """Their words without a fault."""
    return asyncio.run(undisturbed(fleet, streams))


def test_uploads_over_tls_have_the_words(fleet, recordings):
    assert upload(fleet.tls, golden_utterances()[0].path, fleet.certificate) == recordings[0].expected.text


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
