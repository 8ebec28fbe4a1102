"""compose.yaml in containers: health, transcripts by every protocol, load test, hardening, memory, restart."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loadtest.report import REPORT
from tests.helpers.containers import Composition, inspect, servers_up, try_docker, wait_until, wait_until_healthy
from trials.edge_check import PROTOCOLS, upload, words

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
MEMORY = {"server": 4 << 30, "gateway": 1 << 30, "prometheus": 1 << 30}
USERS = {"server": "10001", "gateway": "10001", "prometheus": "65534", "client": "10001", "loadtest": None}
CRASH = ("python", "-c", "import os; os.kill(-1, 9)")
"""Kills all processes that the container's user may end: not process 1, which then exits."""
ENDS = {"server": CRASH, "gateway": CRASH, "prometheus": ("sh", "-c", "kill 1")}
TAKE_MEMORY = "len(b'x' * (3 << 30))"
"""Three times a gateway's memory."""


@pytest.fixture(scope="module")
def running(composition, figures) -> Composition:
    """A server, a gateway and Prometheus that are healthy."""
    for service in MEMORY:
        figures.append((f"{service}: healthy after", f"{composition.up(service):.1f} s"))
    yield composition
    composition.down()


def client(running: Composition, path: Path, *words: str) -> str:
    """Output of the client's image for a recording."""
    name = f"/recordings/{path.relative_to(path.parents[1])}"
    return running.compose("run", "--rm", "--no-deps", "-T", "client", *words, name).strip()


@pytest.mark.parametrize("protocol, port", [("grpc", 8001), ("http", 8000)])
def test_the_client_image_has_the_words_of_the_server(running, recordings, protocol, port):
    said = client(running, recordings[0].path, "--protocol", protocol, "--url", f"server:{port}")
    assert said == recordings[0].expected.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_live_protocols_of_the_gateway_have_the_words(running, recordings, protocol):
    address = running.address("gateway", 50051 if protocol == "riva" else 8080)
    assert asyncio.run(words(protocol, address, recordings[0].samples)) == recordings[0].expected.text


def test_uploads_to_the_gateway_have_the_words_and_need_a_key(running, recordings):
    address = running.address("gateway", 8080)
    assert upload(address, recordings[0].path) == recordings[0].expected.text
    with pytest.raises(urllib.error.HTTPError) as rejected:
        urllib.request.urlopen(urllib.request.Request(f"http://{address}/v1/audio/transcriptions", b""), timeout=60)
    assert rejected.value.code == 401


def test_the_load_test_runs_in_its_container(running, figures):
    done = running.try_compose("run", "--rm", "-T", "loadtest")
    assert done.returncode in (0, 1), done  # 1: chunks were late, as they may be on a busy machine
    report = json.loads((Path(running.environment["LOADTEST_REPORTS"]) / REPORT).read_text(encoding="utf-8"))
    (window,) = report["windows"]
    assert window["chunks"] > 0
    assert (window["errors"]["count"], window["rejections"]["count"]) == (0, 0)
    assert window["words"]["recordings_with_several_texts"] == 0
    late = f"{window['late_chunks']} of {window['chunks']} chunks late"
    figures.append(("load test of 4 streams", f"{late}, p95 {window['chunk_latency_ms']['p95']:.0f} ms"))


def within(running: Composition, service: str, *words: str, user: str = "") -> subprocess.CompletedProcess[str]:
    """A command in the container of a service, or in one of its own where the service ends by itself."""
    options = ["--user", user] if user else []
    if service in MEMORY:
        return try_docker("exec", *options, running.containers(service)[0], *words)
    options += ["--rm", "--no-deps", "-T", "--entrypoint", words[0]]
    return running.try_compose("run", *options, service, *words[1:])


@pytest.mark.parametrize("service", USERS)
def test_containers_have_no_rights_and_a_read_only_root(running, service):
    status = within(running, service, "cat", "/proc/self/status").stdout
    rights = dict(line.split(":\t", 1) for line in status.splitlines())
    assert int(rights["CapEff"], 16) == int(rights["CapBnd"], 16) == 0
    user = USERS[service] or running.environment["LOADTEST_USER"].split(":")[0]
    assert (rights["NoNewPrivs"], rights["Uid"].split()[1]) == ("1", user)
    for place in ("/", "/usr"):
        done = within(running, service, "touch", f"{place}/file", user="0")
        assert done.returncode != 0 and "Read-only file system" in done.stderr + done.stdout, done


@pytest.mark.parametrize("service", MEMORY)
def test_services_are_healthy_limited_and_restarted_by_docker(running, service):
    (container,) = running.containers(service)
    found = inspect(container)
    assert found["State"]["Health"]["Status"] == "healthy"
    assert found["HostConfig"]["Memory"] == MEMORY[service]
    assert found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_what_needs_too_much_memory_is_killed_and_the_gateway_goes_on(running):
    (container,) = running.containers("gateway")
    assert try_docker("exec", container, "python", "-c", TAKE_MEMORY).returncode == 137
    wait_until_healthy([container])
    assert inspect(container)["RestartCount"] == 0


@pytest.mark.parametrize("service", ENDS)
def test_a_service_that_ends_is_started_again(running, recordings, service):
    (container,) = running.containers(service)
    before = inspect(container)["RestartCount"]
    try_docker("exec", container, *ENDS[service])
    wait_until(lambda: inspect(container)["RestartCount"] > before, f"{service} is not started again")
    wait_until_healthy([container])
    wait_until(lambda: servers_up(running.containers("gateway")[0]) == 1, "the gateway has no server")
    test_uploads_to_the_gateway_have_the_words_and_need_a_key(running, recordings)
