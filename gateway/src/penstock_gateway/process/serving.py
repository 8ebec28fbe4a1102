"""A gateway: both ports in one event loop, until a signal; then live streams have time to end."""

import asyncio
import ctypes
import gc
import logging
import math
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIServer

import grpc
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, start_http_server

from penstock_common.listening import ALL, ALL_IPV4, host_port, tcp_socket
from penstock_gateway import limits
from penstock_gateway.app import build_app, build_grpc_server
from penstock_gateway.audio.container import DECODERS
from penstock_gateway.config import Config
from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http.protocol import HttpProtocol, wrong_scheme
from penstock_gateway.process.startup import PORT_UNAVAILABLE, Certificate, Files, StartError
from penstock_gateway.security.access import Access, ClientSecrets, Origins
from penstock_gateway.security.budget import Connections, OpenConnection
from penstock_gateway.security.files import Followed
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.metrics import Metrics
from penstock_gateway.stream.replica_streams import ReplicaStreams
from penstock_gateway.tracing import configure_tracing, end_tracing

log = logging.getLogger(__name__)
_LAST_TURNS = 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_ARENAS = 2
"""By default each of gRPC's threads has one, with up to `_KEPT_BYTES` of freed memory."""
_MMAP_BYTES = 8 << 20
"""Twice the largest request to a server."""
_KEPT_BYTES = 64 << 20
_NEW_OBJECTS = 20_000
"""Between two collections of garbage. Python's 700 are less than the messages of 200 streams in 100 ms."""


def run_gateway(config: Config, files: Files) -> None:
    """Serves until a signal. StartError for ports that cannot be used."""
    if (libc := _glibc()) is not None:  # before there are threads
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
    with _claim(config, "http_port") as http, _claim(config, "grpc_port") as rpc:
        metrics = Metrics()
        server = _serve_metrics(config, metrics.registry)
        ports = GatewayPorts(http.getsockname()[1], rpc.getsockname()[1], server.server_port)
        run_in_loop(serve(config, files, ports, metrics))
        end_tracing(limits.CLOSE_S)
        server.shutdown()


def _claim(config: Config, name: str) -> socket.socket:
    try:
        return claim_port(config.listen, getattr(config, name))
    except OSError as error:
        raise _port_unavailable(name, error) from error


def _port_unavailable(name: str, error: OSError) -> StartError:
    option = Config.option(name)
    return StartError(PORT_UNAVAILABLE, f"{error}; choose another port with {option.flag} or {option.variable}")


def _serve_metrics(config: Config, registry: CollectorRegistry) -> WSGIServer:
    """Serves metrics in a thread. StartError names a port in use."""
    try:
        server, _ = start_http_server(config.metrics_port, config.metrics_listen, registry)
        if config.metrics_listen == ALL and server.socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            start_http_server(server.server_port, ALL_IPV4, registry)  # the system's default is IPv6 alone
    except OSError as error:
        error = port_error(config.metrics_listen, config.metrics_port, error)
        raise _port_unavailable("metrics_port", error) from error
    return server


def run_in_loop(work: Coroutine[None, None, None]) -> None:
    """Runs it in uvloop's event loop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class GatewayPorts(NamedTuple):
    """Ports for clients, which are claimed, and the port of the metrics, which is open."""

    http: int
    grpc: int
    metrics: int


async def serve(config: Config, files: Files, ports: GatewayPorts, metrics: Metrics) -> None:
    """Serves until SIGTERM or SIGINT; a second signal, at least 1 s later, ends live streams at once."""
    streams = ReplicaStreams(config, Admission(), metrics, files.masks)
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
    serving = asyncio.create_task(http.serve([open_port(config.listen, ports.http)]))
    await _until(lambda: http.started or serving.done(), math.inf)
    if serving.done():
        serving.result()  # raises why the HTTP port is not open
    log.info(
        "gateway at %s://%s (OpenAI, Realtime) and %s (Riva), metrics at port %d",
        "http" if config.tls_cert is None else "https", host_port(config.listen, ports.http),
        host_port(config.listen, ports.grpc), ports.metrics,
    )  # fmt: skip
    if certificate is not None:
        metrics.certificate_not_after.labels(certificate.paths[0]).set_function(lambda: certificate.value.not_after_s)
    followed = [file for file in (files.keys.file, certificate) if file is not None]
    for file in followed:
        metrics.follow(file)
    following = asyncio.create_task(_follow_files(followed, http))
    trimming = asyncio.create_task(_trim_memory())
    try:
        await stop.asked.wait()
        await drain(streams, config.drain_seconds, stop)
    finally:
        following.cancel()
        trimming.cancel()
        http.should_exit = True
        await asyncio.gather(serving, rpc.stop(limits.CLOSE_S), return_exceptions=True)
        await streams.close()


async def _follow_files(files: Sequence[Followed[Any]], http: "HttpServer") -> None:
    """Reads keys and certificates again, in a thread: a network file system may take its time."""
    while True:
        await asyncio.sleep(limits.TICK_S)
        try:
            for file in files:
                if await asyncio.to_thread(file.refresh) and isinstance(file, Certificate):
                    assert http.tls is not None
                    file.load_into(http.tls)
        except (OSError, RuntimeError):  # such as no thread: the next round may have one
            log.exception("keys and certificates stay as they are")


async def _trim_memory() -> None:
    """Gives back what bursts have taken: glibc keeps freed memory that lies below memory in use."""
    while (libc := _glibc()) is not None:
        await asyncio.sleep(limits.MINUTE_S)
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
    """uvicorn without handlers of signals: the process has its own.

    With TLS it accepts connections itself: they are counted, and have a limit of time, before the handshake ends.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway):
        super().__init__(config)
        config.load()
        self.tls, config.ssl = config.ssl, None
        self._gateway = gateway
        self._connections = Connections(limits.max_connections(), limits.MAX_UNKNOWN_CONNECTIONS)
        config.http_protocol_class = partial(  # type: ignore[assignment]
            HttpProtocol, gateway=gateway, connections=self._connections
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        if self.tls is None:
            return await super().startup(sockets)
        await super().startup([])
        for listener in sockets or []:
            listener.setblocking(False)
            listener.listen(self.config.backlog)
            self._start(self._accept(listener, self.tls))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more, and ends what is open."""
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        while True:
            try:
                client, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # no descriptor is left, or the client is
                await asyncio.sleep(limits.POLL_S)
                continue
            try:
                connection = self._connections.open(address[0])
            except GatewayError as error:
                self._gateway.note_rejection("http", error)
                client.close()
            else:
                self._start(self._secure(client, connection, context))

    async def _secure(self, client: socket.socket, connection: OpenConnection, context: ssl.SSLContext) -> None:
        protocol: Any = self.config.http_protocol_class
        state, app_state = self.server_state, self.lifespan.state
        make = partial(protocol, config=self.config, server_state=state, app_state=app_state, connection=connection)
        with ExitStack() as on_error, suppress(OSError):
            on_error.callback(connection.close)
            on_error.callback(client.close)
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    make, client, ssl=context, ssl_handshake_timeout=limits.UNRESPONSIVE_S
                )
            except ssl.SSLError as error:
                if error.reason == "HTTP_REQUEST":
                    self._gateway.note_rejection("http", wrong_scheme(connection.address, is_tls=True))
                raise
            on_error.pop_all()  # the protocol does it

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def http_server(app: FastAPI, config: Config) -> HttpServer:
    """The server of the HTTP port, for `serve` with its sockets."""
    settings = uvicorn.Config(
        app,
        loop="none",
        http=HttpProtocol,
        ws="websockets-sansio",
        ws_max_size=limits.MAX_WEBSOCKET_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=limits.KEEP_ALIVE_S,
        ws_ping_timeout=limits.UNRESPONSIVE_S,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        timeout_graceful_shutdown=1,
    )
    return HttpServer(settings, app.state.gateway)


def claim_port(host: str, port: int) -> socket.socket:
    """Binds the port, if no other program has it, for sockets of `open_port`; 0 is any free one.

    OSError names a port in use.
    """
    try:
        with tcp_socket(host) as only:
            only.bind((host, port))
        return open_port(host, port)
    except OSError as error:
        raise port_error(host, port, error) from error


def port_error(host: str, port: int, error: OSError) -> OSError:
    """The error of a port that cannot be opened, which names it."""
    return OSError(f"{host}, port {port}: {(error.strerror or str(error)).lower()}")


def open_port(host: str, port: int) -> socket.socket:
    """A socket bound to the port, beside the one that has claimed it."""
    bound = tcp_socket(host)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections inherit it: the kernel drops a client that takes no bytes for 20 s, even while it is being closed.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2000 * limits.UNRESPONSIVE_S))
    bound.bind((host, port))
    return bound


def add_grpc_port(server: grpc.aio.Server, config: Config, port: int, certificate: Certificate | None) -> int:
    """Opens the gRPC port, with TLS if there is a certificate; returns its number."""
    address = host_port(config.listen, port)
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
        elif self._loop.time() - self._asked_s >= limits.CLOSE_S:
            self.asked_again.set()


async def drain(streams: ReplicaStreams, seconds: float, stop: _Stop) -> None:
    """Accepts no new streams, and returns when the live ones have ended.

    They have this time, or until a second signal. Those that are left then are finished, so that their text arrives,
    and fail with STREAM_LOST.
    """
    streams.drain()
    if streams.live:
        log.info("stopping: %d live streams have %g s to end", streams.live, seconds)
    await _until(lambda: not (streams.live or streams.sessions) or stop.asked_again.is_set(), seconds - limits.CLOSE_S)
    if streams.live:
        log.info("finishing %d live streams", streams.live)
        await streams.finish()
        await _until(lambda: not streams.live, 3 * limits.CLOSE_S)  # the last of the drain, and twice as much beyond it
    streams.cut()
    for _ in range(_LAST_TURNS):  # protocols write the errors in these
        await asyncio.sleep(0.01)


async def _until(is_met: Callable[[], bool], seconds: float) -> None:
    """Returns when the condition holds, or after this time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while not is_met() and loop.time() < deadline_s:
        await asyncio.sleep(limits.POLL_S)
