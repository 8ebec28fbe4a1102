"""A server for one test, started and stopped around it, and what the report is to say of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.locust_run import Target
from penstock.checkpoint import Checkpoint
from penstock.model_repository import find_model_repository
from penstock.server import TritonServer
from penstock.server_launch import LOOPBACK, ServerOptions
from penstock.settings import SERVE_SETTINGS, parse_context
from penstock.triton_install import find_triton

_DRAIN_S = 1


@dataclass(frozen=True)
class ServerPlan:
    """How a test's server is to run."""

    model: Path
    """A bundle."""
    context: str | None
    """L,R; None for the checkpoint's first."""
    max_streams: int
    threads: int
    """Of each member."""


@dataclass(frozen=True)
class ReadyServer:
    """A server that is ready."""

    grpc_url: str
    http_url: str
    metrics_url: str
    process_id: int
    facts: dict[str, object]
    """For the report."""
    why_ended: Callable[[], str | None] = lambda: None
    """See Target."""

    def target(self, protocol: str) -> Target:
        """For a test over "grpc" or "http"."""
        return Target(self.url(protocol), self.metrics_url, self.process_id, self.facts, self.why_ended)

    def url(self, protocol: str) -> str:
        """host:port for "grpc" or "http"."""
        return self.grpc_url if protocol == "grpc" else self.http_url


@contextmanager
def fresh_server(plan: ServerPlan) -> Iterator[ReadyServer]:
    """Starts a server on free ports of this machine and stops it at the end. Raises PenstockError.

    Settings beyond the plan's are taken from the environment (PENSTOCK_..., docs/deployment.md).
    """
    config = Checkpoint(plan.model).config
    context = config.encoder.select_context(parse_context(plan.context) if plan.context else None)
    environment = {
        "PENSTOCK_MODEL": str(plan.model.absolute()),
        "PENSTOCK_CONTEXT": f"{context.left},{context.right}",
        "PENSTOCK_MAX_STREAMS": str(plan.max_streams),
        "PENSTOCK_THREADS": str(plan.threads),
    }
    options = ServerOptions(find_model_repository(), drain_s=_DRAIN_S, environment=environment)
    with TritonServer(find_triton(), options) as server:
        ports = server.ports

        def why_ended() -> str | None:
            return server.end_reason() if server.has_ended() else None

        yield ReadyServer(
            grpc_url=f"{LOOPBACK}:{ports.grpc}",
            http_url=f"{LOOPBACK}:{ports.http}",
            metrics_url=f"http://{LOOPBACK}:{ports.metrics}/metrics",
            process_id=server.process_id,
            facts={
                "model": plan.model.name,
                "context": f"[{context.left},{context.right}]",
                "chunk_ms": config.chunk_ms(context),
                "max_streams": plan.max_streams,
                "threads": plan.threads,
                **settings_beyond(environment),
            },
            why_ended=why_ended,
        )


def settings_beyond(plan: dict[str, str]) -> dict[str, str]:
    """What this process's environment sets for the server beside the plan, by the settings' names."""
    beyond = [setting for setting in SERVE_SETTINGS if setting.variable not in plan]
    return {s.name: os.environ[s.variable] for s in beyond if os.environ.get(s.variable)}
