"""Two servers behind gateways, HAProxy before these if there are two, and the faults that happen to them.

A fault disturbs one part and mends it again: when it returns, all parts run.
"""

import itertools
import os
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from loadtest.locust_run import information
from loadtest.processes import MODELS, server_processes
from penstock.serving.launch import LOOPBACK, Ports, ServerOptions, claim_ports
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.supervisor import Backoff
from penstock.serving.triton_install import find_triton
from penstock.serving.watchdog import Watchdog
from trials.edge_check import running_edge
from trials.server.gateway import RunningGateway, fresh_gateway
from trials.server.running import CONTEXT, RunningServer, server_environment, wait_until

IDLE_S = 10.0
"""Idle timeout of servers behind gateways, which keep their streams open every 3.3 s."""
_STALL_S, _SLOW_S, _GATEWAY_STALL_S = 8.0, 10.0, 5.0
_SLOW_TURN_S = (0.2, 0.1)
"""Stopped and running in turn: a third of the speed."""
_NOTICED_S = 5.0
"""After a fault of a gateway its clients may still find it closed."""
_UP_S = 60.0


class Fleet:
    """Servers of `slots` streams each, and gateways with their defaults. Use as a context manager."""

    key: str | None = None

    def __init__(
        self,
        model: Path,
        slots: int,
        gateways: int = 1,
        logs: Path | None = None,
        context: tuple[int, int] = CONTEXT,
        others: Mapping[str, str] | None = None,
        speakers: Path | None = None,
    ):
        """gateways: 2 have HAProxy before them, as docker/edge has it. logs: a folder for them. others: variables of
        the second server. speakers: a bundle.
        """
        environment = server_environment(model, slots, IDLE_S, context) | {"PENSTOCK_QUEUE_DELAY_MS": ""}
        environment |= {"PENSTOCK_SPEAKERS": str(speakers)} if speakers else {}
        self.slots = slots
        self.servers = [
            TritonServer(find_triton(), _options(environment | more), _log_to(logs, f"server-{i}.log"))
            for i, more in enumerate(({}, others or {}))
        ]
        self.gateways: list[RunningGateway] = []
        self.gateway_fault_s = 0.0
        """Until then (monotonic clock) streams may have been lost with their gateway; infinity during such a fault."""
        self._offered = 0
        self.crashes = 0
        """Number of times a server ended without a fault."""
        self._count, self._logs = gateways, logs
        self._open: list[ExitStack] = []
        """Stack that ends each gateway."""
        self._gone = (0.0, 0.0)
        """Moves of gateways that have ended."""
        self._stack = ExitStack()

    def __enter__(self) -> "Fleet":
        with self._stack as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-fleet-")))
            for server in self.servers:
                stack.callback(server.kill)  # also a stopped one, which would not end by itself
                stack.push(server.__exit__)
            with ThreadPoolExecutor(len(self.servers)) as pool:
                list(pool.map(TritonServer.__enter__, self.servers))
            self.offer(0, 1)
            for number in range(self._count):
                self._open.append(ExitStack())
                stack.callback(self._open[number].close)
                self.gateways.append(self._start_gateway(number, claim_ports(Ports(), LOOPBACK)[0]))
            self.wait_until_up()
            self.http, self.grpc = self.gateways[0].http, self.gateways[0].grpc
            if self._count > 1:
                edge = stack.enter_context(running_edge("haproxy", self.gateways, self._folder))
                self.http = self.grpc = edge.clear
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def offer(self, *numbers: int) -> None:
        """The gateways use these servers from now on."""
        self._offered = len(numbers)
        lines = [f"{LOOPBACK}:{self.servers[number].ports.grpc}\n" for number in numbers]
        new = self._folder / "new"
        new.write_text("".join(lines))
        new.replace(self._folder / "replicas")

    def running(self, number: int) -> RunningServer:
        """A server as the helpers of other trials take it."""
        server = self.servers[number]
        return RunningServer(server.ports, self.slots, IDLE_S, server.process_id)

    def moves(self) -> tuple[float, float]:
        """Streams moved, and seconds sent again."""
        found = [self._gone, *(moves_told(_metrics(gateway)) for gateway in self.gateways)]
        return sum(moved for moved, _ in found), sum(replayed for _, replayed in found)

    def replay_bytes(self) -> float:
        """Audio that the gateways keep for moves."""
        return sum(map(sum, (_values(_metrics(gateway), "penstock_gateway_replay_bytes") for gateway in self.gateways)))

    def restart_server(self, number: int, is_drained: bool = False) -> None:
        """Ends a server, after a drain if wanted, and starts it on the same ports; the gateways know it again."""
        server = self.servers[number]
        if not is_drained:
            server.kill()
        server.stop(drain=is_drained)
        if not is_drained:
            time.sleep(Backoff().next_wait_s(0.0) or 0.0)  # as `penstock serve --restart`
        server.__enter__()  # starts again after a crash
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Waits until each gateway has the servers that it is offered. One that has crashed starts again, as under
        `penstock serve`.
        """
        deadline_s = time.monotonic() + _UP_S
        for gateway in self.gateways:
            while sum(_values(_metrics(gateway), "penstock_gateway_replicas_up")) != self._offered:
                assert time.monotonic() < deadline_s, "a gateway has not the servers that it is offered"
                self._start_crashed()
                time.sleep(0.2)

    def _start_crashed(self) -> None:
        """Triton may crash after a stop of all its processes (docs/reliability.md)."""
        for server in self.servers:
            if server.has_ended():
                self.crashes += 1
                server.stop(drain=False)
                server.start()
                server.wait_ready()

    def end_gateway(self, number: int, how: signal.Signals) -> None:
        """Kills or drains a gateway, and starts it again on the same ports."""
        gateway, self.gateway_fault_s = self.gateways[number], float("inf")
        before = moves_told(_metrics(gateway))
        self._gone = self._gone[0] + before[0], self._gone[1] + before[1]
        with suppress(ProcessLookupError):
            os.kill(gateway.process_id, how)
        self._open[number].close()
        ports = (int(address.rpartition(":")[2]) for address in gateway[:3])
        self.gateways[number] = self._start_gateway(number, Ports(*ports))
        self.gateway_fault_s = time.monotonic() + _NOTICED_S

    def stall_gateway(self, number: int) -> None:
        """Stops a gateway's process for 5 s. An edge that checks it ends its connections."""
        self.gateway_fault_s = float("inf")
        os.kill(self.gateways[number].process_id, signal.SIGSTOP)
        time.sleep(_GATEWAY_STALL_S)
        os.kill(self.gateways[number].process_id, signal.SIGCONT)
        self.gateway_fault_s = time.monotonic() + _NOTICED_S

    def _start_gateway(self, number: int, ports: Ports) -> RunningGateway:
        flags = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, ports), strict=True)
        log = self._logs / f"gateway-{number}.log" if self._logs else None
        replicas = f"file:{self._folder / 'replicas'}"
        opened = fresh_gateway(replicas, *itertools.chain(*flags), kept_log=log)
        return self._open[number].enter_context(opened)


def _options(environment: dict[str, str]) -> ServerOptions:
    return ServerOptions(
        find_model_repository(), drain_s=8, environment=environment, information=information(environment)
    )


def _log_to(folder: Path | None, name: str) -> Callable[[str], object] | None:
    """Keeps a server's lines; None without a folder."""
    if folder is None:
        return None

    def append(line: str) -> None:
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(line if line.endswith("\n") else f"{line}\n")

    return append


def moves_told(metrics: str) -> tuple[float, float]:
    """Streams moved and seconds sent again, of gateways' metrics pages."""
    return (
        sum(_values(metrics, "penstock_gateway_streams_moved_total")),
        sum(_values(metrics, "penstock_gateway_replayed_seconds_total")),
    )


def _metrics(gateway: RunningGateway) -> str:
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics", timeout=60) as page:
        return page.read().decode()


def _values(metrics: str, name: str) -> list[float]:
    """The values of a metric, one for each of its labels."""
    return [float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.M)]


def _signal(server: TritonServer, number: signal.Signals) -> None:
    os.killpg(server.process_id, number)


def kill_server(fleet: Fleet, number: int) -> None:
    """SIGKILL of all processes of a server."""
    fleet.restart_server(number % 2)


def stall_server(fleet: Fleet, number: int) -> None:
    """SIGSTOP of all processes for 8 s: connections stay open, nothing answers, then answers come late."""
    server = fleet.servers[number % 2]
    _signal(server, signal.SIGSTOP)
    time.sleep(_STALL_S)
    _signal(server, signal.SIGCONT)
    fleet.wait_until_up()


def drain_server(fleet: Fleet, number: int) -> None:
    """Drains `penstock serve` by SIGTERM, for 8 s; then it starts again."""
    fleet.restart_server(number % 2, is_drained=True)


def kill_stage(fleet: Fleet, number: int) -> None:
    """SIGKILL of the process of one model: the server ends and starts again as under `penstock serve --restart`."""
    server = fleet.servers[number % 2]
    (process,) = server_processes(server.process_id)[MODELS[number // 2]]
    with Watchdog(server.process_id, f"{LOOPBACK}:{server.ports.http}") as watch:
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: watch.loss, _UP_S, "the watchdog does not see that a model has ended")
    fleet.restart_server(number % 2)


def slow_server(fleet: Fleet, number: int) -> None:
    """A server has a third of its speed for 10 s: no stream may move."""
    server, end_s = fleet.servers[number % 2], time.monotonic() + _SLOW_S
    while time.monotonic() < end_s:
        _signal(server, signal.SIGSTOP)
        time.sleep(_SLOW_TURN_S[0])
        _signal(server, signal.SIGCONT)
        time.sleep(_SLOW_TURN_S[1])
    fleet.wait_until_up()


def stall_gateway(fleet: Fleet, number: int) -> None:
    """SIGSTOP of a gateway for 5 s: no stream may move after it."""
    fleet.stall_gateway(number % len(fleet.gateways))


def kill_gateway(fleet: Fleet, number: int) -> None:
    """SIGKILL of the last gateway: its clients connect again."""
    fleet.end_gateway(-1 % len(fleet.gateways), signal.SIGKILL)


def drain_gateway(fleet: Fleet, number: int) -> None:
    """SIGTERM of the last gateway: streams have 8 s to end, then their clients connect again."""
    fleet.end_gateway(-1 % len(fleet.gateways), signal.SIGTERM)


FAULTS: dict[str, Callable[[Fleet, int], None]] = {
    fault.__name__: fault
    for fault in (
        kill_server, stall_server, drain_server, kill_stage, slow_server, stall_gateway, kill_gateway, drain_gateway,
    )
}  # fmt: skip
"""By name; each takes a number below 6: of the server, and of the model in it."""
