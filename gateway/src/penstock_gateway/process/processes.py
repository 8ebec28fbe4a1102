"""The processes of a gateway: one, or several that share the ports. They are spawned: gRPC must not be forked."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from types import FrameType
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from penstock_gateway.config import Config
from penstock_gateway.metrics import DIRECTORY_VARIABLE, Metrics, forget_process
from penstock_gateway.process.logs import configure_logs
from penstock_gateway.process.serving import Shared, claim_port, port_error, serve
from penstock_gateway.process.startup import PORT_UNAVAILABLE, Files, StartError
from penstock_gateway.stream.admission import Counts

log = logging.getLogger(__name__)
_RESTART_S = 1.0


def run_gateway(config: Config, files: Files) -> None:
    """Serves until a signal. StartError for ports that cannot be used."""
    with _claim(config, "http_port") as http, _claim(config, "grpc_port") as rpc:
        # Bound as long as the gateway runs: a port of 0 is chosen once for all processes.
        shared = Shared(config, files.keys, files.signing_key, http.getsockname()[1], rpc.getsockname()[1])
        if config.workers == 1:
            _run_one(shared)
        else:
            _run_workers(shared)


def _claim(config: Config, name: str) -> socket.socket:
    try:
        return claim_port(config.host, getattr(config, name))
    except OSError as error:
        raise _port_unavailable(name, error) from error


def _port_unavailable(name: str, error: OSError) -> StartError:
    option = Config.option(name)
    return StartError(PORT_UNAVAILABLE, f"{error}; choose another port with {option.flag} or {option.variable}")


def _run_one(shared: Shared) -> None:
    metrics = Metrics()
    server = _serve_metrics(shared.config, metrics.registry)
    _announce(shared, server.server_port)
    run_in_loop(serve(shared, metrics=metrics))
    server.shutdown()


def _run_workers(shared: Shared) -> None:
    context = multiprocessing.get_context("spawn")
    shared = replace(shared, counts=Counts.shared(context, shared.config.workers, len(shared.config.replicas)))
    with tempfile.TemporaryDirectory(prefix="penstock-gateway-") as directory:
        os.environ[DIRECTORY_VARIABLE] = directory
        server = _serve_metrics(shared.config, Metrics().merged())
        _announce(shared, server.server_port)
        _supervise([context.Process(target=_work, args=(shared, i)) for i in range(shared.config.workers)], shared)
        server.shutdown()


def _serve_metrics(config: Config, registry: CollectorRegistry) -> WSGIServer:
    """Serves metrics in a thread. StartError names a port in use."""
    try:
        server, _ = start_http_server(config.metrics_port, config.metrics_host, registry)
    except OSError as error:
        raise _port_unavailable("metrics_port", port_error(config.metrics_host, config.metrics_port, error)) from error
    return server


def _supervise(workers: list[SpawnProcess], shared: Shared) -> None:
    """Runs the workers until a signal, which they get, too. One that dies is started again."""
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True
        for worker in filter(SpawnProcess.is_alive, workers):
            worker.terminate()

    def start(worker: SpawnProcess) -> None:
        if not is_stopping:
            worker.start()
        if is_stopping and worker.is_alive():  # `stop` came while it started
            worker.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for worker in workers:
        start(worker)
    context = multiprocessing.get_context("spawn")
    while any(worker.is_alive() for worker in workers) or not is_stopping:
        time.sleep(_RESTART_S / 10)
        for i, worker in enumerate(workers):
            if not is_stopping and not worker.is_alive():
                log.error("worker %d has ended with status %s; starting another one", i, worker.exitcode)
                if worker.pid is not None:
                    forget_process(worker.pid)
                time.sleep(_RESTART_S)
                workers[i] = context.Process(target=_work, args=(shared, i))
                start(workers[i])


def _work(shared: Shared, process: int) -> None:
    configure_logs(shared.config.log_format)
    run_in_loop(serve(shared, process))


def run_in_loop(work: Coroutine[None, None, None]) -> None:
    """Runs it in uvloop's event loop where there is one."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def _announce(shared: Shared, metrics_port: int) -> None:
    config = shared.config
    scheme = "http" if config.tls_cert is None else "https"
    log.info(
        "gateway at %s://%s:%d (OpenAI, Realtime) and %s:%d (Riva), metrics at port %d",
        scheme, config.host, shared.http_port, config.host, shared.grpc_port, metrics_port,
    )  # fmt: skip
