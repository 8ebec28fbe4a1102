"""A gateway on real sockets of this process, in the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from penstock_gateway.app import build_app, build_grpc_server
from penstock_gateway.gateway import Gateway
from penstock_gateway.process.serving import HttpServer, add_grpc_port, http_server, open_port
from penstock_gateway.process.startup import Certificate


@dataclass(frozen=True)
class Running:
    http: HttpServer
    http_port: int
    grpc_port: int
    certificate: Certificate | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[Running]:
    """Serves both ports on free loopback ports until the block ends."""
    grpc_server = build_grpc_server(gateway)
    certificate = Certificate.of(gateway.config)
    grpc_port = add_grpc_port(grpc_server, gateway.config, 0, certificate)
    await grpc_server.start()
    server = http_server(build_app(gateway), gateway.config)
    listening = open_port("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.005)
        yield Running(server, listening.getsockname()[1], grpc_port, certificate)
    finally:
        server.should_exit = True
        await serving
        await grpc_server.stop(0)


@asynccontextmanager
async def http_client(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the HTTP port of a gateway that serves until the block ends."""
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        yield client
