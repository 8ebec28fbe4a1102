"""Fault trials whose culprit is the server or one of its members: each has a server of its own."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

from penstock.health import probe
from penstock.member_watch import MemberWatch, find_members
from penstock.model_repository import find_model_repository
from penstock.server import TritonServer
from penstock.server_launch import ServerOptions
from penstock.settings import QUEUE_DELAY_MS
from penstock.triton_install import find_triton
from tests.server.conftest import server_environment
from tests.server.history import Ledger
from tests.server.raw_stream import RawStream
from tests.server.throwaway import wait_until_gone
from tests.server.voices import Voice, speak

Figures = dict[str, float | int | str]
MAX_STREAMS = 6


def make_options(model: Path, drain_s: int = 2) -> ServerOptions:
    """A small server with the bundled model and the queue delay as it is delivered."""
    environment = server_environment(model, MAX_STREAMS, idle_s=30.0) | {QUEUE_DELAY_MS.variable: ""}
    return ServerOptions(find_model_repository(), drain_s=drain_s, environment=environment)


def _talk_until(is_over: Event, server: TritonServer, voices: list[Voice], ledger: Ledger, number: int) -> float:
    """Streams, one after the other, until one is broken off; when the last one's error was told."""
    voice = voices[number % len(voices)]
    for turn in range(10_000):
        name = f"talker-{number}-{turn}"
        with RawStream(f"127.0.0.1:{server.ports.grpc}", name, timeout_s=20) as stream:
            history = speak(stream, voice, ledger.open(name, voice.spoken), 0.05)
        if history.error or is_over.is_set():
            break
    return time.monotonic()


def _under_load(server: TritonServer, voices: list[Voice], disturb: Callable[[], None]) -> tuple[Ledger, float]:
    """All slots but one in use while `disturb` does what it does; until everybody was told, and how long that took."""
    ledger, is_over, talkers = Ledger(), Event(), MAX_STREAMS - 1
    with ThreadPoolExecutor(talkers) as pool:
        jobs = [pool.submit(_talk_until, is_over, server, voices, ledger, number) for number in range(talkers)]
        while ledger.whole < talkers:  # everybody is at it
            assert not any(job.done() for job in jobs), [job.exception() for job in jobs if job.done()]
            time.sleep(0.05)
        started = time.monotonic()
        disturb()
        is_over.set()
        told_s = max(job.result(timeout=60) for job in jobs) - started
    ledger.check(may_break=True)
    return ledger, told_s


def _serves_again(options: ServerOptions, ports, voices: list[Voice]) -> None:
    """Another server on the same ports tells a stream all."""
    with TritonServer(find_triton(), replace(options, ports=ports)) as server:
        ledger = Ledger()
        with RawStream(f"127.0.0.1:{server.ports.grpc}", "afterwards") as stream:
            speak(stream, voices[0], ledger.open("afterwards", voices[0].spoken))
        ledger.check()


def stopped_under_load(model: Path, voices: list[Voice]) -> Figures:
    """SIGTERM with all slots busy: whoever ends within the drain is told all, everybody else an error."""
    options = make_options(model)
    with TritonServer(find_triton(), options) as server:
        group = server.process_id
        ledger, told_s = _under_load(server, voices, lambda: server.stop())
    assert told_s < 10
    assert wait_until_gone(group)
    _serves_again(options, server.ports, voices)
    return {"whole": ledger.whole, "broken_off": len(ledger.broken), "last_told_s": told_s}


def held_up(model: Path, voices: list[Voice], times: int, pause_s: float) -> Figures:
    """Server and members stand still, as on a machine that is held up, and go on: everybody is told all."""
    with TritonServer(find_triton(), make_options(model)) as server:
        group = server.process_id
        processes = [group, *find_members(group)]

        def disturb() -> None:
            for _ in range(times):
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for process in processes:
                        os.kill(process, number)
                    time.sleep(pause_s)

        ledger, _ = _under_load(server, voices, disturb)
        assert not server.has_ended()
    assert not ledger.broken
    return {"times": times, "pause_s": pause_s, "whole": ledger.whole}


def lost_member(
    model: Path, voices: list[Voice], name: str, number: signal.Signals, starts_again: bool = True
) -> Figures:
    """A member gets a signal: watch and probe say so, and the end of the server ends all streams.

    starts_again: see whether another server serves afterwards.
    """
    options = make_options(model)
    figures: Figures = {"member": name, "signal": number.name}
    with TritonServer(find_triton(), options) as server:
        group, address = server.process_id, f"127.0.0.1:{server.ports.http}"
        (member,) = [process for process, model_name in find_members(group).items() if model_name == name]

        def disturb() -> None:
            with MemberWatch(group, address) as watch:
                os.kill(member, number)
                started = time.monotonic()
                health = probe(address, timeout_s=5)
                figures["probe_s"] = time.monotonic() - started
                assert not health.is_healthy
                while watch.loss is None:
                    assert time.monotonic() - started < 10
                    time.sleep(0.02)
                figures["watch_s"] = time.monotonic() - started
                figures["said"] = watch.loss
            server.stop(drain=False)
            figures["gone_s"] = time.monotonic() - started

        ledger, figures["last_told_s"] = _under_load(server, voices, disturb)
    assert name in str(figures["said"])
    assert figures["gone_s"] < 10
    assert len(ledger.broken) == MAX_STREAMS - 1
    assert wait_until_gone(group)
    if starts_again:
        _serves_again(options, server.ports, voices)
    return figures
