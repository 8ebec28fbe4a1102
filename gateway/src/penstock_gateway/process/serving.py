"""A gateway: both ports in one event loop, until a signal; then live streams have time to end."""

import asyncio
import ctypes
import gc
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from wsgiref.simple_server import WSGIServer

import grpc
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, start_http_server

from penstock_gateway.app import build_app, build_grpc_server
from penstock_gateway.audio.container import DECODERS
from penstock_gateway.config import Config
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.protocol import HttpProtocol
from penstock_gateway.process.startup import PORT_UNAVAILABLE, Certificate, Files, StartError
from penstock_gateway.security import limits
from penstock_gateway.security.access import Access, ClientSecrets, Origins
from penstock_gateway.security.budget import Connections
from penstock_gateway.security.keys import KeyRing
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.metrics import Metrics
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.tracing import configure_tracing

log = logging.getLogger(__name__)
_POLL_S = 0.1
_FILES_S = 1.0
_SAME_SIGNAL_S = 1.0
_FINISH_S, _OVERTIME_S = 1.0, 2.0
"""Before the end of a drain, and after it, for the last texts of streams that have not ended."""
_LAST_TURNS = 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_BYTES = 8 << 20
"""Twice the largest request to a server."""
_KEPT_BYTES = 64 << 20
_TRIM_S = 60.0
_NEW_OBJECTS = 20_000
"""Between two collections of garbage. Python's 700 are less than the messages of 200 streams in 100 ms."""


def run_gateway(config: Config, files: Files) -> None:
    """Serves until a signal. StartError for ports that cannot be used."""
    with _claim(config, "http_port") as http, _claim(config, "grpc_port") as rpc:
        ports, metrics = Ports(http.getsockname()[1], rpc.getsockname()[1]), Metrics()
        server = _serve_metrics(config, metrics.registry)
        log.info(
            "gateway at %s://%s:%d (OpenAI, Realtime) and %s:%d (Riva), metrics at port %d",
            "http" if config.tls_cert is None else "https", config.host, ports.http, config.host, ports.grpc,
            server.server_port,
        )  # fmt: skip
        run_in_loop(serve(config, files, ports, metrics))
        server.shutdown()


def _claim(config: Config, name: str) -> socket.socket:
    try:
        return claim_port(config.host, getattr(config, name))
    except OSError as error:
        raise _port_unavailable(name, error) from error


def _port_unavailable(name: str, error: OSError) -> StartError:
    option = Config.option(name)
    return StartError(PORT_UNAVAILABLE, f"{error}; choose another port with {option.flag} or {option.variable}")


def _serve_metrics(config: Config, registry: CollectorRegistry) -> WSGIServer:
    """Serves metrics in a thread. StartError names a port in use."""
    try:
        server, _ = start_http_server(config.metrics_port, config.metrics_host, registry)
    except OSError as error:
        raise _port_unavailable("metrics_port", port_error(config.metrics_host, config.metrics_port, error)) from error
    return server


def run_in_loop(work: Coroutine[None, None, None]) -> None:
    """Runs it in uvloop's event loop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class Ports(NamedTuple):
    """Those of clients; both are claimed."""

    http: int
    grpc: int


async def serve(config: Config, files: Files, ports: Ports, metrics: Metrics) -> None:
    """Serves until SIGTERM or SIGINT; a second signal, at least 1 s later, ends live streams at once."""
    streams = ReplicaStreams(config, Admission(), metrics)
    access = Access(files.keys, ClientSecrets(files.signing_key, files.keys), Origins(config.origins))
    gateway = Gateway(config, streams, access, metrics)
    http, rpc = http_server(build_app(gateway), config), build_grpc_server(gateway)
    configure_tracing()
    DECODERS.start()
    await streams.start()
    certificate = Certificate.of(config)
    add_grpc_port(rpc, config, ports.grpc, certificate)
    await rpc.start()
    prepare_process()
    stop = _Stop()
    serving = asyncio.create_task(http.serve([open_port(config.host, ports.http)]))
    following = asyncio.create_task(_follow_files(files.keys, certificate, http))
    trimming = asyncio.create_task(_trim_memory())
    try:
        await stop.asked.wait()
        await drain(streams, config.drain_seconds, stop)
    finally:
        following.cancel()
        trimming.cancel()
        http.should_exit = True
        await asyncio.gather(serving, rpc.stop(_FINISH_S), return_exceptions=True)
        await streams.close()


async def _follow_files(keys: KeyRing, certificate: Certificate | None, http: uvicorn.Server) -> None:
    """Reads keys and certificates again, in a thread: a network file system may take its time."""
    while not http.started:
        await asyncio.sleep(_POLL_S)
    while True:
        await asyncio.sleep(_FILES_S)
        await asyncio.to_thread(keys.refresh)
        if certificate is not None and await asyncio.to_thread(certificate.refresh):
            assert http.config.ssl is not None
            certificate.load_into(http.config.ssl)


async def _trim_memory() -> None:
    """Gives back what bursts have taken: glibc keeps freed memory that lies below memory in use."""
    while (libc := _glibc()) is not None:
        await asyncio.sleep(_TRIM_S)
        libc.malloc_trim(0)


def prepare_process() -> None:
    """Keeps freed memory for a minute, and looks for garbage less often. Call it when all is loaded.

    By default glibc returns every block above 128 KiB to the system when it is freed, and the collector traverses the
    objects of all live streams many times per second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _glibc() -> ctypes.CDLL | None:
    """None where another library allocates, with other habits."""
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:
        return None


class HttpServer(uvicorn.Server):
    """uvicorn without handlers of signals: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def http_server(app: FastAPI, config: Config) -> HttpServer:
    """The server of the HTTP port, for `serve` with its sockets."""
    connections = Connections(limits.MAX_CONNECTIONS, limits.MAX_UNKNOWN_CONNECTIONS)
    settings = uvicorn.Config(
        app,
        loop="none",
        http=partial(HttpProtocol, gateway=app.state.gateway, connections=connections),  # type: ignore[arg-type]
        ws="websockets-sansio",
        ws_max_size=limits.MAX_FRAME_BYTES,
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
    """A socket bound to the port, beside the one that has claimed it."""
    bound = _socket(host)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections inherit it: the kernel drops a client that takes no bytes for 20 s, even while it is being closed.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2000 * limits.MAX_UNREAD_S))
    bound.bind((host, port))
    return bound


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def add_grpc_port(server: grpc.aio.Server, config: Config, port: int, certificate: Certificate | None) -> int:
    """Opens the gRPC port, with TLS if there is a certificate; returns its number."""
    address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
    if certificate is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, certificate.credentials()))


class _Stop:
    """The first signal asks to stop, the second to stop at once.

    One of a process group may come twice: from its sender, and from a parent that passes it on.
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


async def drain(streams: ReplicaStreams, seconds: float, stop: _Stop) -> None:
    """Accepts no new streams, and returns when the live ones have ended.

    They have this time, or until a second signal. Those that are left then are finished, so that their text arrives,
    and fail with STREAM_LOST.
    """
    streams.drain()
    if streams.live:
        log.info("stopping: %d live streams have %g s to end", streams.live, seconds)
    await _until(lambda: not streams.live or stop.asked_again.is_set(), seconds - _FINISH_S)
    if streams.live:
        log.info("finishing %d live streams", streams.live)
        await streams.finish()
        await _until(lambda: not streams.live, _FINISH_S + _OVERTIME_S)
    streams.cut()
    for _ in range(_LAST_TURNS):  # protocols write the errors in these
        await asyncio.sleep(0.01)


async def _until(is_met: Callable[[], bool], seconds: float) -> None:
    """Returns when the condition holds, or after this time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while not is_met() and loop.time() < deadline_s:
        await asyncio.sleep(_POLL_S)
