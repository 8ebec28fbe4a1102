"""compose.yaml in containers: health, transcripts by every protocol, load test, hardening, memory, restart."""

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loadtest.edge_check import PROTOCOLS, upload, words
from loadtest.gateway_attack import OTHER
from loadtest.report import REPORT
from tests.helpers.containers import (
    Composition,
    docker,
    inspect,
    servers_up,
    try_docker,
    wait_until,
    wait_until_healthy,
)
from tests.helpers.golden import golden_utterances

pytestmark = [pytest.mark.containers, pytest.mark.timeout(7200)]
SERVICES = ("server", "gateway")
UTTERANCE = golden_utterances()[0].path
END_ALL = "import os; os.kill(-1, 9)"
"""Of all processes that the container's user may end: not process 1, which then exits."""
TAKE_MEMORY = "len(b'x' * (3 << 30))"
"""Three times a gateway's memory."""


@pytest.fixture(scope="module")
def running(composition, figures) -> Composition:
    """A server and a gateway that are healthy."""
    figures.append(("server: healthy after", f"{composition.up('server'):.1f} s"))
    figures.append(("gateway: healthy after", f"{composition.up('gateway'):.1f} s"))
    yield composition
    composition.down()


def client(running: Composition, *words: str) -> str:
    """What the client's image prints for an utterance."""
    name = f"/recordings/{UTTERANCE.relative_to(UTTERANCE.parents[1])}"
    return running.compose("run", "--rm", "--no-deps", "-T", "client", *words, name).strip()


@pytest.mark.parametrize("protocol, port", [("grpc", 8001), ("http", 8000)])
def test_the_client_image_has_the_words_of_the_server(running, recordings, protocol, port):
    said = client(running, "--protocol", protocol, "--url", f"server:{port}")
    assert said == recordings[0].expected.text


def test_the_client_image_has_the_words_of_the_gateway(running, recordings):
    said = client(running, "--url", "gateway:50051", "--header", f"authorization: Bearer {OTHER}")
    assert said == recordings[0].expected.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_live_protocols_of_the_gateway_have_the_words(running, recordings, protocol):
    address = running.address("gateway", 50051 if protocol == "riva" else 8080)
    assert asyncio.run(words(protocol, address, recordings[0].samples)) == recordings[0].expected.text


def test_uploads_to_the_gateway_have_the_words_and_need_a_key(running, recordings):
    address = running.address("gateway", 8080)
    assert upload(address, UTTERANCE) == recordings[0].expected.text
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


@pytest.mark.parametrize("service", SERVICES)
def test_containers_have_no_rights_and_a_read_only_root(running, service):
    (container,) = running.containers(service)
    status = docker("exec", container, "cat", "/proc/self/status")
    rights = dict(line.split(":\t", 1) for line in status.splitlines())
    assert int(rights["CapEff"], 16) == int(rights["CapBnd"], 16) == 0
    assert (rights["NoNewPrivs"], rights["Uid"].split()[1]) == ("1", "10001")
    for place in ("/", "/opt/penstock/venv", "/usr/local"):
        done = try_docker("exec", "--user", "0", container, "touch", f"{place}/file")
        assert done.returncode != 0 and "Read-only file system" in done.stderr, done


def test_what_needs_too_much_memory_is_killed_and_the_gateway_goes_on(running):
    (container,) = running.containers("gateway")
    assert inspect(container)["HostConfig"]["Memory"] == 1 << 30
    assert try_docker("exec", container, "python", "-c", TAKE_MEMORY).returncode == 137
    wait_until_healthy([container])
    assert inspect(container)["RestartCount"] == 0


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_ends_is_started_again(running, recordings, service):
    (container,) = running.containers(service)
    before = inspect(container)["RestartCount"]
    try_docker("exec", container, "python", "-c", END_ALL)
    wait_until(lambda: inspect(container)["RestartCount"] > before, f"{service} is not started again")
    wait_until_healthy([container])
    wait_until(lambda: servers_up(running.containers("gateway")[0]) == 1, "the gateway has no server")
    test_the_client_image_has_the_words_of_the_gateway(running, recordings)
