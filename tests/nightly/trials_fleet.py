"""Fault trials of two servers and a gateway: one server dies, stalls or stops under live streams of the gateway."""

import asyncio
import os
import re
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from loadtest.fresh_gateway import RunningGateway, fresh_gateway
from loadtest.gateway_clients import Word, realtime_texts, riva_texts
from penstock.serving.launch import ServerOptions
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from tests.helpers.server.gateway_client import spoken
from tests.helpers.server.recordings import Recording
from tests.helpers.server.resources import Figures, read_metrics, wait_until_free
from tests.helpers.server.running import RunningServer, information, server_environment

_IDLE_S = 30.0
_STREAM_S = 40
_FAULT_S = 12.0
_PAUSE_SAMPLES = 16_000
"""Between utterances: the gateway ends a segment in it."""


@dataclass
class Played:
    """What a stream was told."""

    words: list[Word]
    late_s: float
    """The longest time from the end of the audio that a text covers, as spoken, to the text."""


def killed_replica(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """SIGKILL of all processes of a server."""
    return _trial(model, recordings, count, lambda server: os.killpg(server.process_id, signal.SIGKILL))


def stalled_replica(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """SIGSTOP of all processes of a server: connections stay open, and nothing answers."""
    return _trial(model, recordings, count, lambda server: os.killpg(server.process_id, signal.SIGSTOP))


def drained_replica(model: Path, recordings: list[Recording], count: int = 10) -> Figures:
    """What SIGTERM does to `penstock serve`: a drain of 8 s."""
    return _trial(model, recordings, count, lambda server: server.stop())


def _trial(model: Path, recordings: list[Recording], count: int, fault: Callable[[TritonServer], object]) -> Figures:
    samples = audio(recordings)
    environment = server_environment(model, count + 4, _IDLE_S) | {"PENSTOCK_QUEUE_DELAY_MS": ""}
    options = ServerOptions(
        find_model_repository(), drain_s=8, environment=environment, information=information(environment)
    )
    with ExitStack() as stack:
        servers = [stack.enter_context(TritonServer(find_triton(), options)) for _ in range(2)]
        for server in servers:
            stack.callback(server.kill)  # also a stopped one, which would not end by itself
        replicas = ",".join(f"127.0.0.1:{server.ports.grpc}" for server in servers)
        with fresh_gateway(replicas) as gateway:
            expected = play_all(gateway, samples, count)
            before = _moves(gateway)
            played = play_all(gateway, samples, count, lambda: fault(servers[0]))
            moves = _moves(gateway) - before
        left = RunningServer(servers[1].ports, count + 4, _IDLE_S, servers[1].process_id)
        back_s = wait_until_free(left, 60.0)
        assert read_metrics(left)["slots_free"] == count + 4
    return outcome(expected, played, moves) | {"slots_back_s": back_s}


def outcome(expected: list[Played], played: list[Played], moves: np.ndarray) -> Figures:
    """What a fault did to streams, by those without it and `moves_told`; AssertionError if a word differs."""
    moved, replayed_s = moves.tolist()
    same = sum(one.words == other.words for one, other in zip(played, expected, strict=True))
    figures = {
        "streams": len(played),
        "moved": int(moved),
        "replayed_s_per_stream": replayed_s / max(1, moved),
        "text_late_s_max": max(one.late_s for one in played),
        "undisturbed_late_s_max": max(one.late_s for one in expected),
        "streams_with_equal_words": same,
        "words": sum(len(one.words) for one in played),
    }
    assert moved > 0 and same == len(played), (figures, _difference(expected, played))
    return figures


def audio(recordings: list[Recording]) -> np.ndarray:
    """int16 [n] of 40 s: utterances with pauses."""
    pause = np.zeros(_PAUSE_SAMPLES, np.float32)
    parts = [part for recording in recordings for part in (recording.samples, pause)]
    samples = np.resize(np.concatenate(parts), _STREAM_S * 16_000)
    return np.round(samples * 32767).astype(np.int16)


def play_all(
    gateway: RunningGateway,
    samples: np.ndarray,
    count: int,
    fault: Callable[[], object] | None = None,
    key: str | None = None,
) -> list[Played]:
    """Streams that begin 130 ms apart, each at the pace of speech; the fault comes when they have run for 12 s."""

    async def play(number: int) -> Played:
        await asyncio.sleep(0.13 * number)
        return await _read(gateway, np.roll(samples, 1600 * 7 * number), number % 3 == 2, key)

    async def play_each() -> list[Played]:
        jobs = [asyncio.create_task(play(number)) for number in range(count)]
        await asyncio.sleep(_FAULT_S)
        if fault is not None:
            await asyncio.to_thread(fault)
        return list(await asyncio.wait_for(asyncio.gather(*jobs), 300))

    return asyncio.run(play_each())


async def _read(gateway: RunningGateway, samples: np.ndarray, is_realtime: bool, key: str | None) -> Played:
    """Of a Riva stream, or of a Realtime stream in one segment."""
    words: list[Word] = []
    begin_s = late_s = 0.0

    async def parts() -> AsyncIterator[np.ndarray]:
        nonlocal begin_s
        begin_s = time.monotonic()
        async for part in spoken(samples):
            yield part

    if is_realtime:
        header = {"Authorization": f"Bearer {key}"} if key else None
        opened = realtime_texts(gateway.http, parts(), additional_headers=header)
    else:
        opened = riva_texts(gateway.grpc, parts(), key=key)
    async with aclosing(opened) as texts:
        async for text in texts:
            if text.processed_s is not None:
                late_s = max(late_s, time.monotonic() - begin_s - text.processed_s)
            if text.is_final:
                words += text.words
    return Played(words, late_s)


def _difference(expected: list[Played], played: list[Played]) -> list[tuple[list[Word], list[Word]]]:
    pairs = ((one.words, other.words) for one, other in zip(expected, played, strict=True))
    return list(islice((pair for pair in pairs if pair[0] != pair[1]), 1))


def _moves(gateway: RunningGateway) -> np.ndarray:
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics", timeout=10) as page:
        return moves_told(page.read().decode())


def moves_told(metrics: str) -> np.ndarray:
    """[streams moved, seconds sent again] of gateways' metrics pages."""
    moved = re.findall(r"^penstock_gateway_streams_moved_total\{.*\} (\S+)$", metrics, re.M)
    replayed = re.findall(r"^penstock_gateway_replayed_seconds_total (\S+)$", metrics, re.M)
    return np.array([sum(map(float, moved)), sum(map(float, replayed))])
