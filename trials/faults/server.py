"""Fault trials of a server or one of its models, and of graceful restarts; each has a server or gateway of its own."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from threading import Event, Semaphore

import numpy as np

from loadtest.gateway_clients import CONNECTION_ERRORS, realtime_texts, riva_texts
from penstock.serving.health import probe
from penstock.serving.launch import ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from penstock.serving.watchdog import Watchdog, find_model_processes
from penstock_client import Client, ConnectionOptions, Transcript
from trials.server.fleet_streams import spoken
from trials.server.gateway import RunningGateway
from trials.server.raw_stream import BATCHED, RawStream, raw_stream
from trials.server.recordings import Histories, Recording, stream_all
from trials.server.resources import Figures
from trials.server.running import running_gateway, running_server, server_environment, wait_until, wait_until_gone

MAX_STREAMS = 6
_RIVA, *_ = _KINDS = ("riva", "realtime")
_RATE_HZ = 16_000
_RECONNECT_S = 900
"""A busy machine takes minutes to start a server."""
_UNSETTLED_WORDS = 2
"""At the end of a text that was cut short."""


def make_options(model: Path) -> ServerOptions:
    """A small server with the bundled model and the default queue delay."""
    environment = server_environment(model, MAX_STREAMS, idle_s=30.0) | {"PENSTOCK_QUEUE_DELAY_MS": ""}
    return ServerOptions(find_model_repository(), drain_s=2, environment=environment)


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
                wait_until(lambda: watch.loss, 60.0, "the watchdog does not see the loss")
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


def restarted_server(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """A server stops gracefully and starts again under direct clients that reconnect: each word once."""
    samples = np.concatenate([recording.samples for recording in recordings])
    options = replace(make_options(model), environment=server_environment(model, count + 2, idle_s=30.0))
    with TritonServer(find_triton(), options) as server, ThreadPoolExecutor(count) as pool:
        ports, going = server.ports, Semaphore(0)
        addresses = [(f"127.0.0.1:{ports.grpc}", "grpc"), (f"127.0.0.1:{ports.http}", "http")]
        undisturbed = [_words(_transcribe(*address, samples, Semaphore(0))) for address in addresses]
        jobs = [pool.submit(_transcribe, *address, samples, going) for address in islice(cycle(addresses), count)]
        for _ in jobs:
            assert going.acquire(timeout=120), "not all streams have had a result"
        stopped_s = time.monotonic()
        server.stop()
        server.start()
        server.wait_ready()
        gap_s = time.monotonic() - stopped_s
        transcripts = [job.result() for job in jobs]
    for transcript, expected in zip(transcripts, cycle(undisturbed), strict=False):
        assert transcript.is_complete
        assert _words(transcript) == expected, (_words(transcript), expected)
    return {"streams": count, "words": sum(len(transcript.words) for transcript in transcripts), "restart_s": gap_s}


def restarted_gateway(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """A gateway stops under streams of each live protocol: each gets its text so far, once, and then an error."""
    samples = np.tile(np.round(np.concatenate([one.samples for one in recordings]) * 32767).astype(np.int16), 4)
    kinds = list(islice(cycle(_KINDS), count))
    with contextmanager(running_server)(model, 2 * count, 30.0) as server:
        with running_gateway(server) as gateway:
            expected = asyncio.run(_text(gateway, _RIVA, samples)).split()
        with running_gateway(server, "--drain-seconds", "3") as gateway:
            texts = asyncio.run(_texts_until_stopped(gateway, kinds, samples))
    for kind, text in zip(kinds, texts, strict=True):
        words = text.split()
        settled = max(0, len(words) - _UNSETTLED_WORDS)
        assert settled and words[:settled] == expected[:settled], (kind, text)
    return {"streams": count, "words": sum(len(text.split()) for text in texts)}


def _transcribe(address: str, protocol: str, samples: np.ndarray, going: Semaphore) -> Transcript:
    """Sends at the pace of speech; `going` is released with the first result."""
    times = ConnectionOptions(reconnect_s=_RECONNECT_S)
    with Client(address, protocol, timeout_s=60, connection_options=times) as client, client.open_stream() as stream:
        is_going = False
        for start in range(0, len(samples), _RATE_HZ // 10):
            stream.send(samples[start : start + _RATE_HZ // 10])
            if stream.poll(0.1) and not is_going:
                is_going = True
                going.release()
        stream.finish()
        list(stream)
        return stream.transcript


def _words(transcript: Transcript) -> list[tuple[str, int, int]]:
    return [(word.text, word.start_ms, word.end_ms) for word in transcript.words]


async def _texts_until_stopped(gateway: RunningGateway, kinds: list[str], samples: np.ndarray) -> list[str]:
    """The last text of each stream; the gateway is stopped once all have words."""
    going = [asyncio.Event() for _ in kinds]
    jobs = [asyncio.create_task(_text(gateway, kind, samples, event)) for kind, event in zip(kinds, going, strict=True)]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in going)), 120)
    os.kill(gateway.process_id, signal.SIGTERM)
    return list(await asyncio.wait_for(asyncio.gather(*jobs), 120))


async def _text(gateway: RunningGateway, kind: str, samples: np.ndarray, going: asyncio.Event | None = None) -> str:
    """The newest text of a stream. With `going`, set with its first word, it must end with an error."""
    texts_of, address = (riva_texts, gateway.grpc) if kind == _RIVA else (realtime_texts, gateway.http)
    text = ""
    try:
        async with aclosing(texts_of(address, spoken(samples))) as texts:
            async for found in texts:
                text = found.text or text
                if going is not None and text:
                    going.set()
    except CONNECTION_ERRORS as error:
        assert going is not None and "STREAM_LOST" in str(error).upper(), error
        return text
    assert going is None, f"the stream of {kind} ended without an error"
    return text
