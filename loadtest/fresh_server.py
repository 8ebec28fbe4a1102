"""A server for one test, started and stopped around it, and its facts for the report."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest.locust_run import Target
from loadtest.options import GATEWAYS, RIVA
from penstock.model.bundle import Checkpoint
from penstock.model.config import parse_context
from penstock.serving.information import server_information
from penstock.serving.launch import LOOPBACK, ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import ServeOptions, Settings
from penstock.serving.triton_install import find_triton

_DRAIN_S = 1


@dataclass(frozen=True)
class ServerPlan:
    """Settings of a test's server."""

    model: Path
    """A bundle."""
    context: str | None
    """L,R; None for `ModelConfig.default_context`, and of an offline model, whose streams choose their windows."""
    max_streams: int
    threads: int
    """Per model."""


@dataclass(frozen=True)
class ReadyServer:
    """A server that is ready."""

    server: TritonServer
    facts: dict[str, object]
    """What the report says about the server."""

    @property
    def metrics_url(self) -> str:
        """Address of Triton's metrics page."""
        return f"http://{LOOPBACK}:{self.server.ports.metrics}/metrics"

    @property
    def process_id(self) -> int:
        """The process id of tritonserver."""
        return self.server.process_id

    def url(self, protocol: str) -> str:
        """host:port for "grpc" or "http"."""
        return f"{LOOPBACK}:{getattr(self.server.ports, protocol)}"

    def target(self, protocol: str) -> Target:
        """The target of a test over "grpc" or "http"."""
        return Target(
            self.url(protocol), self.metrics_url, self.process_id, facts=self.facts, end_reason=self._end_reason
        )

    def _end_reason(self) -> str | None:
        return self.server.end_reason() if self.server.has_ended() else None


@contextmanager
def fresh_server(plan: ServerPlan) -> Iterator[ReadyServer]:
    """Starts a server on free ports of this machine and stops it at the end. Raises PenstockError.

    Settings beyond the plan's come from the environment (PENSTOCK_..., docs/deployment.md).
    """
    environment = {
        "PENSTOCK_MODEL": str(plan.model.absolute()),
        "PENSTOCK_MAX_STREAMS": str(plan.max_streams),
        "PENSTOCK_THREADS": str(plan.threads),
    }
    facts: dict[str, object] = {"model": plan.model.name}
    config = Checkpoint(plan.model).config
    if plan.context or not config.encoder.is_offline:
        context = config.encoder.select_context(parse_context(plan.context) if plan.context else None)
        environment["PENSTOCK_CONTEXT"] = f"{context.left},{context.right}"
        facts |= {"context": f"[{context.left},{context.right}]", "chunk_ms": config.chunk_ms(context)}
    facts |= {"max_streams": plan.max_streams, "threads": plan.threads, **settings_beyond(environment)}
    options = ServerOptions(
        find_model_repository(), drain_s=_DRAIN_S, environment=environment, information=_information(environment)
    )
    with TritonServer(find_triton(), options) as server:
        yield ReadyServer(server, facts)


@contextmanager
def fresh_target(server: ReadyServer, target: str, protocol: str) -> Iterator[Target]:
    """The server itself or, as `target` (of --target) says, a gateway that is started in front of it."""
    direct = server.target(protocol)
    if target not in GATEWAYS:
        yield direct
        return
    from loadtest.fresh_gateway import fresh_gateway  # needs the wheel of the gateway

    with fresh_gateway(server.url("grpc"), "--endpoint-silence-ms", "0", "--timeout-s", "60") as gateway:
        url = gateway.grpc if target == RIVA else gateway.http
        yield replace(direct, url=url, gateway_id=gateway.process_id)


def _information(environment: dict[str, str]) -> dict[str, str]:
    """What `penstock serve` with these settings publishes; the device is no part of it."""
    found = Settings.from_environment({**os.environ, **environment, "PENSTOCK_DEVICE": "cpu"})
    return server_information(found.checkpoint, found.context, found.decoding, found.max_streams, found.idle_limit_s)


def settings_beyond(plan: dict[str, str]) -> dict[str, str]:
    """Returns server settings that this process's environment sets beside the plan, by the settings' names."""
    beyond = [option for option in ServeOptions.options() if option.variable not in plan]
    return {s.name: os.environ[s.variable] for s in beyond if os.environ.get(s.variable)}
