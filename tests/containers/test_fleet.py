"""Two servers, two gateways and HAProxy in containers: a server is lost under ten live streams, and no word is."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_attack import OTHER
from tests.helpers.containers import (
    Composition,
    docker,
    gateway_metrics,
    inspect,
    servers_up,
    wait_until,
    wait_until_healthy,
)
from tests.nightly.trials_fleet import Played, audio, moves_told, outcome, play_all

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
STREAMS = 10


class Fault(NamedTuple):
    """What happens to a container in its network, and what ends it."""

    begin: tuple[str, ...]
    end: tuple[str, ...]


FAULTS = {
    "docker kill": Fault(("kill", "CONTAINER"), ("start", "CONTAINER")),
    "docker pause": Fault(("pause", "CONTAINER"), ("unpause", "CONTAINER")),
    "docker network disconnect": Fault(
        ("network", "disconnect", "NETWORK", "CONTAINER"),
        ("network", "connect", "--alias", "server", "NETWORK", "CONTAINER"),
    ),
}


class Fleet:
    """Servers that gateways find by the name `server`, and the edge before the gateways."""

    def __init__(self, composition: Composition):
        for service in ("server", "gateway"):
            composition.up("--no-deps", "--scale", f"{service}=2", service)
        self.servers, self.gateways = (composition.containers(name) for name in ("server", "gateway"))
        self.network = composition.network()
        for i, gateway in enumerate(self.gateways, 1):
            address = inspect(gateway)["NetworkSettings"]["Networks"][self.network]["IPAddress"]
            composition.environment[f"GATEWAY_{i}"] = address
        composition.up("--no-deps", "haproxy")
        address = composition.address("haproxy", 8000)
        self.edge = RunningGateway(address, address, "", 0)
        self.wait_until_whole()

    def metrics(self) -> str:
        """The pages of all gateways."""
        return "\n".join(map(gateway_metrics, self.gateways))

    def docker(self, words: tuple[str, ...]) -> None:
        """A Docker command about the first server."""
        names = {"CONTAINER": self.servers[0], "NETWORK": self.network}
        docker(*(names.get(word, word) for word in words))

    def wait_until_whole(self) -> None:
        """Waits until every gateway has both servers."""
        wait_until_healthy([*self.servers, *self.gateways])
        for gateway in self.gateways:
            wait_until(lambda gateway=gateway: servers_up(gateway) == len(self.servers), f"{gateway} lacks a server")


@pytest.fixture(scope="module")
def fleet(composition) -> Iterator[Fleet]:
    of_two = Composition({**composition.environment, "PENSTOCK_GATEWAY_REPLICAS": "dns:server:8001"})
    of_two.down()
    yield Fleet(of_two)
    of_two.down()


@pytest.fixture(scope="module")
def play(fleet, recordings) -> Callable[..., list[Played]]:
    """Plays the streams through the edge, beside a fault."""
    return lambda fault=None: play_all(fleet.edge, audio(recordings), STREAMS, fault, OTHER)


@pytest.fixture(scope="module")
def expected(play) -> list[Played]:
    """Without a fault."""
    return play()


@pytest.mark.parametrize("name", FAULTS)
def test_a_lost_server_costs_no_word(fleet, play, expected, figures, name):
    before = moves_told(fleet.metrics())
    try:
        played = play(lambda: fleet.docker(FAULTS[name].begin))
        found = outcome(expected, played, moves_told(fleet.metrics()) - before)
    finally:
        fleet.docker(FAULTS[name].end)
    figures.append((name, ", ".join(f"{what} {figure:.3g}" for what, figure in found.items())))
    fleet.wait_until_whole()
