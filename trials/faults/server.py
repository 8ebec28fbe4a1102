"""Fault trials of the server or one of its models; each has a server of its own."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

from penstock.serving.health import probe
from penstock.serving.launch import ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from penstock.serving.watchdog import Watchdog, find_model_processes
from trials.server.batched import BATCHED, raw_stream
from trials.server.history import Histories
from trials.server.raw_stream import RawStream
from trials.server.recordings import Recording, stream_all
from trials.server.running import server_environment
from trials.server.throwaway import wait_until_gone

Figures = dict[str, float | int | str]
MAX_STREAMS = 6


def make_options(model: Path, drain_s: int = 2) -> ServerOptions:
    """A small server with the bundled model and the default queue delay."""
    environment = server_environment(model, MAX_STREAMS, idle_s=30.0) | {"PENSTOCK_QUEUE_DELAY_MS": ""}
    return ServerOptions(find_model_repository(), drain_s=drain_s, environment=environment)


def _stream_until(
    is_over: Event, server: TritonServer, recordings: list[Recording], histories: Histories, number: int
) -> float:
    """Sends streams one after the other until one breaks or `is_over`; returns the time of its last error.

    They are in turn direct and batched ones; those of half the clients begin with the latter.
    """
    recording = recordings[number % len(recordings)]
    for number_of_stream in range(number, 10_000):
        name = f"client-{number}-{number_of_stream}"
        with raw_stream(server.ports, name, ("grpc", BATCHED)[number_of_stream % 2], timeout_s=20) as stream:
            history = stream_all(stream, recording, histories.open(name, recording.expected), 0.05)
        if history.error or is_over.is_set():
            break
    return time.monotonic()


def _under_load(
    server: TritonServer, recordings: list[Recording], disturb: Callable[[], None]
) -> tuple[Histories, float]:
    """Runs `disturb` with all slots but one in use; returns the histories and the seconds until the last error."""
    histories, is_over, clients = Histories(), Event(), MAX_STREAMS - 1
    with ThreadPoolExecutor(clients) as pool:
        jobs = [pool.submit(_stream_until, is_over, server, recordings, histories, number) for number in range(clients)]
        while histories.whole < clients:  # every client has sent a whole stream
            assert not any(job.done() for job in jobs), [job.exception() for job in jobs if job.done()]
            time.sleep(0.05)
        started = time.monotonic()
        disturb()
        is_over.set()
        reported_s = max(job.result(timeout=60) for job in jobs) - started
    histories.check(may_break=True)
    return histories, reported_s


def _serves_again(options: ServerOptions, ports, recordings: list[Recording]) -> None:
    """Checks that another server on the same ports serves a whole stream."""
    with TritonServer(find_triton(), replace(options, ports=ports)) as server:
        histories = Histories()
        with RawStream(f"127.0.0.1:{server.ports.grpc}", "afterwards") as stream:
            stream_all(stream, recordings[0], histories.open("afterwards", recordings[0].expected))
        histories.check()


def stopped_under_load(model: Path, recordings: list[Recording], starts_again: bool = True) -> Figures:
    """SIGTERM with all slots busy: a stream is complete if it ends within the drain, else it gets an error.

    starts_again: check that another server serves on the same ports afterwards.
    """
    options = make_options(model)
    with TritonServer(find_triton(), options) as server:
        group = server.process_id
        histories, reported_s = _under_load(server, recordings, lambda: server.stop())
    assert reported_s < 10
    assert wait_until_gone(group)
    if starts_again:
        _serves_again(options, server.ports, recordings)
    return {"whole": histories.whole, "broken_off": len(histories.broken), "last_reported_s": reported_s}


def lost_stage(
    model: Path, recordings: list[Recording], name: str, number: signal.Signals, starts_again: bool = True
) -> Figures:
    """A model's process gets a signal: watchdog and probe report it, and the end of the server ends all streams.

    starts_again: check that another server serves afterwards.
    """
    options = make_options(model)
    figures: Figures = {"model": name, "signal": number.name}
    with TritonServer(find_triton(), options) as server:
        group, address = server.process_id, f"127.0.0.1:{server.ports.http}"
        (stub,) = [process for process, model_name in find_model_processes(group).items() if model_name == name]

        def disturb() -> None:
            with Watchdog(group, address) as watch:
                stub.send_signal(number)
                started = time.monotonic()
                health = probe(address, timeout_s=60)
                figures["probe_s"] = time.monotonic() - started
                assert not health.is_healthy
                while watch.loss is None:
                    assert time.monotonic() - started < 60
                    time.sleep(0.02)
                figures["watch_s"] = time.monotonic() - started
                figures["reason"] = watch.loss
            server.stop(drain=False)
            figures["gone_s"] = time.monotonic() - started

        histories, figures["last_reported_s"] = _under_load(server, recordings, disturb)
    assert name in str(figures["reason"])
    assert figures["gone_s"] < 60
    assert len(histories.broken) == MAX_STREAMS - 1
    assert wait_until_gone(group)
    if starts_again:
        _serves_again(options, server.ports, recordings)
    return figures
