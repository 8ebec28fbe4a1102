"""Real servers with the bundled checkpoint, their processes, and gateways before them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.locust_run import information
from penstock.serving.launch import Ports, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from trials.server.gateway import RunningGateway, fresh_gateway

CONTEXT = (70, 6)


@dataclass(frozen=True)
class RunningServer:
    """Ports and size of a server."""

    ports: Ports
    max_streams: int
    idle_s: float
    process_id: int

    def url(self, protocol: str) -> str:
        """Address for `grpc`, `http` or `metrics`."""
        return f"127.0.0.1:{getattr(self.ports, protocol)}"


def server_environment(
    model: Path, max_streams: int, idle_s: float, context: tuple[int, int] = CONTEXT
) -> dict[str, str]:
    """Environment of a server's models."""
    return {
        "PENSTOCK_MODEL": str(model),
        "PENSTOCK_CONTEXT": ",".join(map(str, context)),
        "PENSTOCK_MAX_STREAMS": str(max_streams),
        "PENSTOCK_IDLE_SECONDS": str(idle_s),
        "PENSTOCK_QUEUE_DELAY_MS": "0",  # a test sends its requests one after the other
    }


def running_server(
    model: Path, max_streams: int, idle_s: float, more: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    """Starts a server on free ports and kills it at the end. more: further variables of its environment."""
    environment = server_environment(model, max_streams, idle_s) | (more or {})
    options = ServerOptions(find_model_repository(), environment=environment, information=information(environment))
    with TritonServer(find_triton(), options) as server:
        yield RunningServer(server.ports, max_streams, idle_s, server.process_id)
        server.stop(drain=False)


@contextmanager
def running_gateway(server: RunningServer, *flags: str) -> Iterator[RunningGateway]:
    """A gateway before a server. Segments end with their recording, unless flags say else."""
    with fresh_gateway(server.url("grpc"), "--endpoint-silence-ms", "0", "--timeout-s", "60", *flags) as gateway:
        yield gateway


def processes(group: int) -> list[int]:
    """Returns the process ids of a process group without zombies."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, process_group = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:  # gone meanwhile
            continue
        if int(process_group) == group and state != "Z":
            found.append(int(entry))
    return found


def wait_until(is_so: Callable[[], object], timeout_s: float, what: str) -> float:
    """Looks again and again; returns the seconds until it is so. AssertionError with `what` after the limit."""
    begin_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin_s < timeout_s, f"{what} after {timeout_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - begin_s


def wait_until_gone(group: int) -> bool:
    """True as soon as no process of the group is left; AssertionError after a minute."""
    wait_until(lambda: not processes(group), 60.0, f"process group {group} has not ended")
    return True
