"""The composition in containers, as scripts/compose_test.sh prepares it: compose, and the containers of a service."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "compose.yaml", ROOT / "tests" / "containers" / "compose.yaml")
PROFILES = ("gateway", "loadtest", "monitoring", "client", "edge")
_LONG_S = 1800.0
_READ_METRICS = (
    "import urllib.request as r; print(r.urlopen('http://localhost:8081/metrics', timeout=60).read().decode())"
)
_SERVERS = re.compile(r"^penstock_gateway_replicas_up\{.*\} (\S+)$", re.M)


def docker(*words: str) -> str:
    """The output of a Docker command; AssertionError with all that it says if it fails."""
    done = try_docker(*words)
    assert done.returncode == 0, (words, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout.strip()


def try_docker(*words: str) -> subprocess.CompletedProcess[str]:
    """The same; what fails is the caller's."""
    return _run(["docker", *words], os.environ)


class Composition:
    """compose.yaml with tests/containers/compose.yaml over it."""

    def __init__(self, variables: Mapping[str, str]):
        self.environment = {**os.environ, **variables}
        self.project = self.environment["COMPOSE_PROJECT_NAME"]

    def compose(self, *words: str) -> str:
        """The output of a compose command with all profiles; AssertionError if it fails."""
        done = self.try_compose(*words)
        assert done.returncode == 0, (words, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout.strip()

    def try_compose(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same; what fails is the caller's."""
        command = shlex.split(self.environment["COMPOSE"])
        command += ["--project-directory", str(ROOT)]
        command += [word for path in FILES for word in ("-f", str(path))]
        command += [word for profile in PROFILES for word in ("--profile", profile)]
        return _run([*command, *words], self.environment)

    def containers(self, service: str) -> list[str]:
        """Ids of the containers of a service that are not one-off ones, by their number."""
        labels = {"project": self.project, "service": service, "oneoff": "False"}
        filters = [
            word for name, value in labels.items() for word in ("--filter", f"label=com.docker.compose.{name}={value}")
        ]
        ids = docker("ps", "--all", "--quiet", *filters).split()
        return sorted(ids, key=lambda one: int(inspect(one)["Config"]["Labels"]["com.docker.compose.container-number"]))

    def address(self, service: str, port: int) -> str:
        """HOST:PORT on this machine of a published port of a service's first container."""
        return docker("port", self.containers(service)[0], str(port)).split()[0]

    def up(self, *words: str) -> float:
        """Starts services; returns the seconds until all their containers are healthy."""
        begin_s = time.monotonic()
        self.compose("up", "--detach", "--no-build", *words)
        services = [word for i, word in enumerate(words) if "=" not in word and not word.startswith("-")]
        wait_until_healthy([one for service in services for one in self.containers(service)])
        return time.monotonic() - begin_s

    def down(self) -> None:
        """Stops and removes the containers, networks and volumes."""
        self.compose("down", "--volumes", "--remove-orphans")


def inspect(container: str) -> dict:
    """Inspects a container with Docker."""
    return json.loads(docker("inspect", container))[0]


def wait_until_healthy(containers: Sequence[str], timeout_s: float = 600.0) -> None:
    """Waits until each container that has a health check is healthy, the others until they run."""
    deadline_s = time.monotonic() + timeout_s
    for container in containers:
        while not _is_well(state := inspect(container)["State"]):
            said = (state["Status"], try_docker("logs", "--tail", "30", container))
            assert time.monotonic() < deadline_s and state["Status"] in ("running", "restarting"), said
            time.sleep(0.5)


def wait_until(is_so: Callable[[], object], otherwise: str, timeout_s: float = 600.0) -> None:
    """Waits until it is so; AssertionError with what is so otherwise."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, otherwise
        time.sleep(0.5)


def gateway_metrics(gateway: str) -> str:
    """The metrics page of a gateway's container, whose port is not published."""
    return docker("exec", gateway, "python", "-c", _READ_METRICS)


def servers_up(gateway: str) -> int:
    """The servers that a gateway's container knows as up."""
    return sum(int(float(count)) for count in _SERVERS.findall(gateway_metrics(gateway)))


def _is_well(state: dict) -> bool:
    return state["Status"] == "running" and state.get("Health", {}).get("Status", "healthy") == "healthy"


def _run(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=_LONG_S, check=False)
