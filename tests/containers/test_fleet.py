"""Two servers, two gateways and HAProxy in containers: a server is lost under ten live streams, and no word is."""

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from loadtest.gateway_attack import OTHER
from loadtest.gateway_clients import Word
from tests.helpers.containers import (
    Composition,
    docker,
    gateway_metrics,
    inspect,
    servers_up,
    wait_until,
    wait_until_healthy,
)
from tests.helpers.server.fleet import moves_told
from tests.helpers.server.fleet_streams import Stream, make_streams, run_during, undisturbed

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
STREAMS, BEFORE_S = 10, 12.0


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

    key, gateway_fault_s = OTHER, 0.0
    """As of `tests.helpers.server.fleet.Fleet`."""

    def __init__(self, composition: Composition):
        for service in ("server", "gateway"):
            composition.up("--no-deps", "--scale", f"{service}=2", service)
        self.servers, self.gateways = (composition.containers(name) for name in ("server", "gateway"))
        self.network = composition.network()
        for i, gateway in enumerate(self.gateways, 1):
            address = inspect(gateway)["NetworkSettings"]["Networks"][self.network]["IPAddress"]
            composition.environment[f"GATEWAY_{i}"] = address
        composition.up("--no-deps", "haproxy")
        self.http = self.grpc = composition.address("haproxy", 8000)
        self.wait_until_whole()

    def moves(self) -> np.ndarray:
        """[streams moved, seconds sent again]."""
        return np.array(moves_told("\n".join(map(gateway_metrics, self.gateways))))

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
def streams(recordings) -> list[Stream]:
    return make_streams(recordings, STREAMS, kinds=("segments", "one segment"))


@pytest.fixture(scope="module")
def expected(fleet, streams) -> list[list[Word]]:
    """Without a fault."""
    return asyncio.run(undisturbed(fleet, streams))


@pytest.mark.parametrize("name", FAULTS)
def test_a_lost_server_costs_no_word(fleet, streams, expected, figures, name):
    before = fleet.moves()

    def disturb() -> None:
        time.sleep(BEFORE_S)
        fleet.docker(FAULTS[name].begin)

    try:
        run = asyncio.run(run_during(fleet, streams, expected, disturb))
        moved, replayed_s = (fleet.moves() - before).tolist()
        assert not run.problems and len(run.played) == STREAMS and moved
    finally:
        fleet.docker(FAULTS[name].end)
    told = f"{moved:.0f} of {STREAMS} streams moved, {replayed_s / moved:.1f} s each sent again"
    figures.append((name, f"{told}; {run.words} words, {run.changed} changed; late {run.late_s():.1f} s"))
    fleet.wait_until_whole()
