"""The composition's load test: it waits for a healthy server, and its report is where the documents say.

`docker-compose config` reads the file where it is installed; else it is read as YAML, with the defaults put in.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from loadtest.__main__ import _parser

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose.yaml"
GUIDE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def read_by_docker_compose() -> dict:
    """All services, whatever their profile. Variables of this shell do not count."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = ["docker-compose", "-f", str(COMPOSE), "--profile", "loadtest", "config"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


def read_as_yaml() -> dict:
    """The composition with the defaults of all variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text(encoding="utf-8"))
    return yaml.safe_load(text)["services"]


@pytest.fixture(scope="module")
def services() -> dict:
    has_compose = shutil.which("docker-compose") is not None and not (ROOT / ".env").exists()
    return read_by_docker_compose() if has_compose else read_as_yaml()


@pytest.fixture(scope="module")
def command(services) -> argparse.Namespace:
    """What the load test's own parser makes of the service's command."""
    args, rest = _parser().parse_known_args(words_of(services))
    args.minutes = rest[rest.index("--minutes") + 1]
    assert len(rest) == 2, rest
    return args


def words_of(services: dict) -> list[str]:
    """The load test's command, which is one text or a list."""
    words = services["loadtest"]["command"]
    return shlex.split(words) if isinstance(words, str) else words


def test_only_its_profile_starts_the_load_test(services):
    assert services["loadtest"]["profiles"] == ["loadtest"]
    assert not services["server"].get("profiles")
    assert "--profile loadtest run --rm loadtest" in GUIDE


def test_it_waits_for_a_healthy_server(services):
    assert services["loadtest"]["depends_on"]["server"]["condition"] == "service_healthy"
    health = services["server"].get("healthcheck")
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stage = dockerfile.partition(f" AS {services['server']['build']['target']}\n")[2].partition("\nFROM ")[0]
    assert (health is None and "HEALTHCHECK" in stage) or (health and not health.get("disable"))


def test_it_connects_to_the_ports_of_the_server(services, command):
    ports = {str(port).split(":")[-1].split("/")[0] for port in services["server"]["ports"]}
    assert command.command == "run"
    assert (command.url.partition(":")[0], command.metrics_url.startswith("http://server:")) == ("server", True)
    assert {command.url.partition(":")[2], re.search(r":(\d+)/metrics$", command.metrics_url)[1]} <= ports
