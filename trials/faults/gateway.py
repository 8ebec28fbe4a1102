"""Fault trials of a gateway's clients. Each returns its figures and raises AssertionError where it failed."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from threading import Event, Thread

import numpy as np

from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_clients import riva_texts
from penstock_gateway.security.limits import MAX_SILENT_S
from trials.faults.hostile_input import send_hostile_grpc, send_hostile_http
from trials.faults.networks import TcpProxy
from trials.server.killed_clients import KINDS, spoken, use_gateway_until_killed, words_of
from trials.server.recordings import KilledClient, Recording, other_streams
from trials.server.resources import SPARE_DESCRIPTORS, SPARE_MEMORY_MB, Figures, read_metrics, wait_until_free
from trials.server.running import RunningServer, running_gateway, wait_until

_FREED_WITHIN_S = 1.5
_OTHERS = 2
"""Streams of other clients: one direct, one through the gateway."""
_SPARE_STREAMS = _OTHERS + 2
"""Also their next ones, or the probe of `penstock serve`."""
_CLOSING_S = 60
_WATCH_S = 2.0
"""Between two looks of the gateway at the time of a client's last audio."""


def killed_gateway_clients(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Clients of a gateway die in mid-stream: their processes by SIGKILL, or their connections by a reset."""
    kinds, freed_s, samples = cycle(KINDS), [], _16_bits(recordings)
    size = max(1, min(server.max_streams - _SPARE_STREAMS, count))
    sizes = [size] * (count // size) + [count % size] * (count % size > 0)
    with running_gateway(server) as gateway, _others(server, gateway, recordings) as whole:
        for death in (_by_sigkill, _by_reset):  # buffers and caches are made
            death(server, gateway, [next(kinds) for _ in range(size)], samples)
        before = _resources(gateway)
        for clients, death in zip(sizes, cycle((_by_sigkill, _by_reset)), strict=False):
            freed_s.append(death(server, gateway, [next(kinds) for _ in range(clients)], samples))
        grown = _check_resources(gateway, before)
    assert max(freed_s) <= _FREED_WITHIN_S, sorted(freed_s)[-5:]
    return {"clients": count, "freed_s_max": max(freed_s), **grown, "other_streams": whole()}


def stalled_gateway_clients(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Networks between clients and a gateway stall, with all sockets open: the gateway's limit of silence ends them."""
    kinds = cycle(KINDS)
    with running_gateway(server) as gateway, _others(server, gateway, recordings) as whole:
        before = _resources(gateway)
        some = [next(kinds) for _ in range(max(1, min(server.max_streams - _SPARE_STREAMS, count)))]
        with ExitStack() as stack:
            proxied, proxies = _proxied(gateway, stack)
            clients = _start(server, proxied, some, _16_bits(recordings))
            for proxy in proxies:
                proxy.stall()
            freed_s = _wait_until_freed(server, MAX_SILENT_S + 30) - MAX_SILENT_S
            _kill(clients)
        grown = _check_resources(gateway, before)
    assert freed_s <= _FREED_WITHIN_S + _WATCH_S, freed_s
    return {"clients": len(some), "freed_after_limit_s": freed_s, **grown, "other_streams": whole()}


def hostile_gateway_grpc(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Wrong KServe requests in protobuf, also those that end a server."""
    return _send_hostile(server, recordings, lambda gateway: send_hostile_grpc(gateway.grpc, count, ["asr"], False))


def hostile_gateway_http(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """The same in JSON, and bodies that do not match their headers."""
    return _send_hostile(server, recordings, lambda gateway: send_hostile_http(gateway.http, count, ["asr"], False))


def _send_hostile(
    server: RunningServer, recordings: list[Recording], send: Callable[[RunningGateway], Figures]
) -> Figures:
    with running_gateway(server) as gateway, _others(server, gateway, recordings) as whole:
        send(gateway)  # buffers and caches are made
        before = _resources(gateway)
        outcomes = send(gateway)
        grown = _check_resources(gateway, before)
    assert not outcomes.keys() & {"UNAVAILABLE", "INTERNAL", "UNKNOWN", "HTTP 500", "HTTP 503"}, outcomes
    return {**outcomes, **grown, "other_streams": whole()}


def _by_sigkill(server: RunningServer, gateway: RunningGateway, kinds: list[str], samples: np.ndarray) -> float:
    """Returns the seconds from the last death until the slots are free."""
    _kill(_start(server, gateway, kinds, samples))
    return _wait_until_freed(server)


def _by_reset(server: RunningServer, gateway: RunningGateway, kinds: list[str], samples: np.ndarray) -> float:
    with ExitStack() as stack:
        proxied, proxies = _proxied(gateway, stack)
        clients = _start(server, proxied, kinds, samples)
        for proxy in proxies:
            proxy.cut()
        freed_s = _wait_until_freed(server)
    _kill(clients)
    return freed_s


def _proxied(gateway: RunningGateway, stack: ExitStack) -> tuple[RunningGateway, list[TcpProxy]]:
    """The gateway behind a proxy for each of its ports."""
    http, grpc = (
        stack.enter_context(TcpProxy(int(address.rpartition(":")[2]))) for address in (gateway.http, gateway.grpc)
    )
    return gateway._replace(http=http.url, grpc=grpc.url), [http, grpc]


def _16_bits(recordings: list[Recording]) -> np.ndarray:
    samples = np.concatenate([recording.samples for recording in recordings])
    return np.round(samples * 32768).clip(-32768, 32767).astype(np.int16)


def _start(server: RunningServer, gateway: RunningGateway, kinds: list[str], samples: np.ndarray) -> list[KilledClient]:
    """Clients in mid-stream: all of them have slots."""
    clients = [KilledClient(gateway, kind, samples, use_gateway_until_killed) for kind in kinds]
    for client in clients:
        client.wait_until_going(60.0)
    most = server.max_streams - len(kinds)
    wait_until(lambda: read_metrics(server)["slots_free"] <= most, 60.0, "not all clients have a slot")
    return clients


def _kill(clients: list[KilledClient]) -> None:
    for client in clients:
        client.kill()


def _wait_until_freed(server: RunningServer, timeout_s: float = 30.0) -> float:
    """Returns the seconds from now."""
    return wait_until_free(server, timeout_s, server.max_streams - _OTHERS)


def _resources(gateway: RunningGateway) -> tuple[int, float]:
    """Descriptors of the gateway, and its resident memory in MiB."""
    place = Path(f"/proc/{gateway.process_id}")
    found = re.search(r"^VmRSS:\s+(\d+) kB", (place / "status").read_text(), re.M)
    assert found
    return len(os.listdir(place / "fd")), int(found[1]) / 1024


def _check_resources(gateway: RunningGateway, before: tuple[int, float]) -> Figures:
    """Returns the growth; AssertionError beyond the limits."""
    most = before[0] + SPARE_DESCRIPTORS
    wait_until(lambda: _resources(gateway)[0] <= most, _CLOSING_S, f"more than {most} descriptors", 0.1)
    after = _resources(gateway)
    assert after[1] <= before[1] + SPARE_MEMORY_MB, (before, after)
    return {"gateway_descriptors_grown": after[0] - before[0], "gateway_memory_grown_mb": after[1] - before[1]}


@contextmanager
def _others(server: RunningServer, gateway: RunningGateway, recordings: list[Recording]) -> Iterator:
    """Whole streams one after the other meanwhile, direct and through the gateway; each must receive all its words.
    Yields what returns their number at the end."""
    is_over, wrong, played = Event(), [], 0

    async def play() -> None:
        nonlocal played
        for recording in cycle(recordings):
            if is_over.is_set():
                return
            if (
                words := await words_of(riva_texts(gateway.grpc, spoken(_16_bits([recording]))))
            ) != recording.expected.words:
                wrong.append((words, recording.expected.words))
            played += 1

    thread = Thread(target=lambda: asyncio.run(play()))
    thread.start()
    try:
        with other_streams(server, recordings, count=1) as direct:
            yield lambda: direct.whole + played
    finally:
        is_over.set()
        thread.join()
    assert played and not wrong, (played, wrong[:3])
