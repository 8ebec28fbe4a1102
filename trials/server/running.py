"""Real servers with the bundled checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.serving.information import server_information
from penstock.serving.launch import Ports, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import Settings
from penstock.serving.triton_install import find_triton

CONTEXT = (70, 6)


@dataclass(frozen=True)
class RunningServer:
    """Where a server listens and how large it is."""

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


def information(environment: dict[str, str]) -> dict[str, str]:
    """What `penstock serve` with these settings tells clients."""
    found = Settings.from_environment(environment | {"PENSTOCK_DEVICE": "cpu"})
    return server_information(found.checkpoint, found.context, found.decoding, found.max_streams, found.idle_limit_s)


def running_server(
    model: Path, max_streams: int, idle_s: float, more: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    """Starts a server on free ports and kills it at the end. more: further variables of its environment."""
    environment = server_environment(model, max_streams, idle_s) | (more or {})
    options = ServerOptions(find_model_repository(), environment=environment, information=information(environment))
    with TritonServer(find_triton(), options) as server:
        yield RunningServer(server.ports, max_streams, idle_s, server.process_id)
        server.stop(drain=False)
