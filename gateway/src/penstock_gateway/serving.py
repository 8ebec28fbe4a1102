"""One process of a gateway: both ports in one event loop, until a signal; then live streams have time to end."""

import asyncio
import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn
from fastapi import FastAPI

from penstock_gateway.app import build_app, build_grpc_server
from penstock_gateway.audio.container import DECODERS
from penstock_gateway.config import Config
from penstock_gateway.gateway import Gateway
from penstock_gateway.metrics import Metrics
from penstock_gateway.security.access import Access, Origins
from penstock_gateway.security.client_secrets import ClientSecrets
from penstock_gateway.security.keys import KeyRing
from penstock_gateway.security.limits import MAX_FRAME_BYTES, MAX_UNREAD_S
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.tracing import configure_tracing

log = logging.getLogger(__name__)
_POLL_S = 0.1
_SAME_SIGNAL_S = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_BYTES = 8 << 20
"""Twice the largest request to a server."""
_KEPT_BYTES = 64 << 20
_NEW_OBJECTS = 20_000
"""Between two collections of garbage. Python's 700 are less than the messages of 200 streams in 100 ms."""


@dataclass(frozen=True)
class Shared:
    """What the processes of a gateway share."""

    config: Config
    keys: KeyRing
    signing_key: bytes
    http_port: int
    grpc_port: int
    counts: MutableSequence[int] | None = None
    """Streams of each key in each process; None for one process."""


async def serve(shared: Shared, process: int = 0, metrics: Metrics | None = None) -> None:
    """Serves until SIGTERM or SIGINT; a second signal, at least 1 s later, ends live streams at once."""
    config, metrics = shared.config, metrics or Metrics()
    admission = Admission(shared.keys.names, shared.counts, process)
    streams = ReplicaStreams(config, admission, metrics)
    access = Access(shared.keys, ClientSecrets(shared.signing_key, shared.keys), Origins(config.origins))
    gateway = Gateway(config, streams, access, metrics)
    http, rpc = http_server(build_app(gateway), config), build_grpc_server(gateway)
    configure_tracing()
    DECODERS.start()
    await streams.start()
    add_grpc_port(rpc, config, shared.grpc_port)
    await rpc.start()
    prepare_process()
    stop = _Stop()
    serving = asyncio.create_task(http.serve([open_port(config.host, shared.http_port)]))
    try:
        await stop.asked.wait()
        await _drain(streams, config.drain_seconds, stop)
    finally:
        http.should_exit = True
        await asyncio.gather(serving, rpc.stop(0), return_exceptions=True)
        await streams.close()


def prepare_process() -> None:
    """Keeps freed memory within the process, and looks for garbage less often. Call it when all is loaded.

    By default glibc returns every block above 128 KiB to the system when it is freed, and the collector traverses the
    objects of all live streams many times per second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc: another allocator with other habits
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class HttpServer(uvicorn.Server):
    """uvicorn without handlers of signals: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def http_server(app: FastAPI, config: Config) -> HttpServer:
    """The server of the HTTP port, for `serve` with its sockets."""
    settings = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        timeout_graceful_shutdown=1,
    )
    return HttpServer(settings)


def claim_port(host: str, port: int) -> socket.socket:
    """Binds the port, if no other program has it, for sockets of `open_port`; 0 is any free one.

    OSError names a port in use.
    """
    try:
        with _socket(host) as only:
            only.bind((host, port))
        return open_port(host, port)
    except OSError as error:
        raise port_error(host, port, error) from error


def port_error(host: str, port: int, error: OSError) -> OSError:
    """The error of a port that cannot be opened, which names it."""
    return OSError(f"{host}, port {port}: {(error.strerror or str(error)).lower()}")


def open_port(host: str, port: int) -> socket.socket:
    """A socket bound to the port, which the processes share."""
    bound = _socket(host)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections inherit it: the kernel drops a client that takes no bytes for 20 s, even while it is being closed.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2000 * MAX_UNREAD_S))
    bound.bind((host, port))
    return bound


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def add_grpc_port(server: grpc.aio.Server, config: Config, port: int) -> int:
    """Opens the gRPC port, with TLS if it is configured; returns its number."""
    address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
    if config.tls_cert is None or config.tls_key is None:
        return int(server.add_insecure_port(address))
    pair = (Path(config.tls_key).read_bytes(), Path(config.tls_cert).read_bytes())
    return int(server.add_secure_port(address, grpc.ssl_server_credentials([pair])))


class _Stop:
    """The first signal asks to stop, the second to stop at once.

    One of a process group reaches a worker twice: from its sender and from the supervisor.
    """

    def __init__(self) -> None:
        self.asked, self.asked_again = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._asked_s = 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        if not self.asked.is_set():
            self._asked_s = self._loop.time()
            self.asked.set()
        elif self._loop.time() - self._asked_s >= _SAME_SIGNAL_S:
            self.asked_again.set()


async def _drain(streams: ReplicaStreams, seconds: float, stop: _Stop) -> None:
    """Accepts no new streams, and returns when the live ones have ended, after the time, or at a second signal."""
    streams.drain()
    deadline_s = asyncio.get_running_loop().time() + seconds
    if streams.live:
        log.info("stopping: %d live streams have %g s to end", streams.live, seconds)
    while streams.live and not stop.asked_again.is_set() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(_POLL_S)
