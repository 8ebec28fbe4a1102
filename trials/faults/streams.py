"""Fault trials of clients. Each returns its figures and raises AssertionError where it failed.

`count` is the size: small in tests/server/test_faults.py, full in trials/fault_trials.py.
"""

import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event

from tritonclient.utils import InferenceServerException

from trials.server.raw_stream import BATCHED, RawStream, raw_stream
from trials.server.recordings import (
    NO_SAMPLES,
    REQUEST_SAMPLES,
    Histories,
    History,
    KilledClient,
    Recording,
    other_streams,
    rejection,
    send_empty_stream,
    stream_all,
)
from trials.server.resources import (
    SPARE_DESCRIPTORS,
    Figures,
    beside_others,
    read_metrics,
    read_resources,
    wait_until_free,
)
from trials.server.running import RunningServer, wait_until

SPARE_STREAMS = 3
"""The other stream, its next recording, and the probe of `penstock serve`."""
_REJECTED_WITHIN_MS = 100
_PROTOCOLS = ("grpc", "http", BATCHED)
LIVE_REQUEST_S = 0.2
"""Audio per request of a live stream, and the time between two requests."""


@beside_others
def killed_clients(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Client processes end by SIGKILL in mid-stream; the server detects them by the idle timeout alone."""
    killed, freed_s = 0, []
    while killed < count:
        some = min(max(1, server.max_streams - SPARE_STREAMS), count - killed)
        expired = read_metrics(server)["streams_expired_total"]
        clients = [
            KilledClient(server.url("grpc"), f"killed-{killed + i}", recordings[i % len(recordings)].samples)
            for i in range(some)
        ]
        for client in clients:
            client.wait_until_going()
        for client in clients:
            client.kill()
        killed += some
        freed_s.append(wait_until_expired(server, expired + some, time.monotonic()))
    assert max(freed_s) < 1.0, freed_s
    return {"clients": killed, "freed_after_timeout_s_max": max(freed_s)}


def wait_until_expired(server: RunningServer, expired: float, silent_since_s: float) -> float:
    """Returns the seconds after the idle timeout until `expired` streams have expired since the server's start and all
    slots but one are free, which another stream holds."""

    def is_over() -> bool:
        return count_expired(server) >= expired and read_metrics(server)["slots_free"] >= server.max_streams - 1

    wait_until(is_over, server.idle_s + 10, "streams have not expired")
    return time.monotonic() - silent_since_s - server.idle_s


def count_expired(server: RunningServer) -> float:
    """Returns the number of streams that have expired; the request makes the server check for them."""
    send_empty_stream(server)
    return read_metrics(server)["streams_expired_total"]


@beside_others
def never_ended(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """The idle timeout: a stream lives while its pauses are shorter, and expires after a longer one."""
    late, histories = [], Histories()
    for number in range(count):
        recording = recordings[number % len(recordings)]
        expired = read_metrics(server)["streams_expired_total"]
        with (
            RawStream(server.url("grpc"), f"slow-{number}") as slow,
            RawStream(server.url("grpc"), f"mute-{number}") as mute,
            ThreadPoolExecutor(1) as pool,
        ):
            history, third = histories.open(slow.id, recording.expected), len(recording.samples) // 3 + 1
            sending = pool.submit(stream_all, slow, recording, history, server.idle_s * 0.6, third)
            silent_since = time.monotonic()  # the server's clock starts when the request arrives
            mute.send(recording.samples[:REQUEST_SAMPLES], start=True)
            wait_until(partial(_has_expired, server, expired), server.idle_s + 10, "no stream has expired")
            late.append(time.monotonic() - silent_since - server.idle_s)
            assert late[-1] > -0.05
            error = rejection(lambda mute=mute: mute.send(NO_SAMPLES))
            assert "STREAM_NOT_OPEN: " in error, error
            sending.result(timeout=60)
    histories.check()
    assert max(late) < 1.0, late
    return {"streams": 2 * count, "expired_too_late_s_max": max(late)}


@beside_others
def started_twice(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """START on a live stream: its state is dropped, and the new stream is like any other."""
    histories = Histories()
    for number in range(count):
        first, second = recordings[number % len(recordings)], recordings[(number + 1) % len(recordings)]
        with RawStream(server.url("grpc"), f"twice-{number}") as stream:
            stream.send(first.samples[:20000], start=True)
            stream_all(stream, second, histories.open(stream.id, second.expected))
    histories.check()
    return {"streams": count}


@beside_others
def two_on_one_id(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Two clients use one stream id at once: their words mix, and other streams are unaffected."""
    answers = rejections = 0
    with ThreadPoolExecutor(2) as pool:
        for number in range(count):
            name = f"shared-{number}"

            def run_stream(recording: Recording, name: str = name) -> tuple[int, int]:
                answered = rejected = 0
                with RawStream(server.url("grpc"), name) as stream:
                    for start in range(0, len(recording.samples), 1600):
                        try:
                            stream.send(recording.samples[start : start + 1600], start=start == 0)
                            answered += 1
                        except InferenceServerException as error:
                            assert re.search("STREAM_NOT_OPEN: |STREAM_LOST: ", str(error)), error
                            rejected += 1
                return answered, rejected

            for answered, rejected in pool.map(run_stream, recordings[:2]):
                answers, rejections = answers + answered, rejections + rejected
            with RawStream(server.url("grpc"), name) as stream:
                stream.send(NO_SAMPLES, end=True)
    return {"pairs": count, "answers": answers, "rejections": rejections}


@beside_others
def after_the_end(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A request after END is rejected, and the id is free for another stream."""
    histories = Histories()
    for number, protocol in zip(range(count), itertools.cycle(_PROTOCOLS), strict=False):
        recording = recordings[number % len(recordings)]
        with raw_stream(server.ports, f"ended-{number}", protocol) as stream:
            for _ in range(2):
                stream_all(stream, recording, histories.open(stream.id, recording.expected))
                assert "STREAM_NOT_OPEN: " in rejection(lambda stream=stream: stream.send(NO_SAMPLES))
                assert "STREAM_NOT_OPEN: " in rejection(lambda stream=stream: stream.send(NO_SAMPLES, end=True))
    histories.check()
    return {"streams": 2 * count}


def too_many(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A fifth more streams than slots, `count` times: the extra ones are rejected at once, the others go on."""
    rejected_ms, histories, extra = [], Histories(), max(1, server.max_streams // 5)
    for number in range(count):
        with _all_slots_taken(server, recordings, histories, str(number)) as admitted:
            for i in range(extra):
                replies_before, protocol = _count_replies(admitted), ("grpc", BATCHED)[(number + i) % 2]
                with raw_stream(server.ports, f"extra-{number}-{i}", protocol) as stream:
                    started = time.monotonic()
                    error = rejection(lambda stream=stream: stream.send(recordings[0].samples, start=True))
                    rejected_ms.append(1000 * (time.monotonic() - started))
                    assert "STREAM_LIMIT: " in error
                    assert "STREAM_NOT_OPEN: " in rejection(lambda stream=stream: stream.send(NO_SAMPLES, end=True))
                wait_until(partial(_have_replies, admitted, replies_before), 10.0, "no other stream was served")
        with RawStream(server.url("grpc"), f"next-{number}") as stream:
            stream_all(stream, recordings[0], histories.open(stream.id, recordings[0].expected))
    histories.check()
    too_late = sum(ms >= _REJECTED_WITHIN_MS for ms in rejected_ms)
    assert max(rejected_ms) < 1000 and too_late <= max(1, len(rejected_ms) // 20), rejected_ms
    return {"rejected": len(rejected_ms), "rejected_ms_max": max(rejected_ms), "late_rejections": too_late,
            "admitted": histories.whole}  # fmt: skip


def _has_expired(server: RunningServer, before: float) -> bool:
    return count_expired(server) > before


def _count_replies(histories: list[History]) -> int:
    return sum(len(history.replies) for history in histories)


def _have_replies(histories: list[History], before: int) -> bool:
    return _count_replies(histories) > before


@contextmanager
def _all_slots_taken(
    server: RunningServer, recordings: list[Recording], histories: Histories, name: str
) -> Iterator[list[History]]:
    """Opens as many streams as there are slots, which send their audio in real time and end afterwards."""
    is_over, jobs, admitted = Event(), [], []
    with ThreadPoolExecutor(server.max_streams) as pool:
        for i in range(server.max_streams):
            recording = recordings[i % len(recordings)]
            admitted.append(histories.open(f"admitted-{name}-{i}", recording.expected))
            protocol = _PROTOCOLS[i % len(_PROTOCOLS)]
            jobs.append(pool.submit(_stream_live, server, protocol, recording, admitted[-1], is_over))
        try:
            wait_until(lambda: all(history.replies for history in admitted), 30.0, "not every stream has a slot")
            yield admitted
        finally:
            is_over.set()
    for job in jobs:
        job.result()


def _stream_live(server: RunningServer, protocol: str, recording: Recording, history: History, is_over: Event) -> None:
    """Sends a stream until `is_over`, with empty requests after the end of its audio."""
    place, request_samples = 0, int(16000 * LIVE_REQUEST_S)
    with raw_stream(server.ports, history.name, protocol) as stream:
        while not is_over.wait(LIVE_REQUEST_S if place else 0.0):
            end = min(place + request_samples, len(recording.samples) - 1)
            history.replies.append(stream.send(recording.samples[place:end], start=place == 0))
            place = end
        history.replies.append(stream.send(recording.samples[place:], end=True))


def short_streams(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """`count` short streams, direct and batched: no slot, descriptor or memory leaks."""
    histories = Histories()

    def run_stream(number: int) -> None:
        recording, protocol = recordings[number % len(recordings)], _PROTOCOLS[number % len(_PROTOCOLS)]
        with raw_stream(server.ports, f"short-{number}-{time.monotonic_ns()}", protocol) as stream:
            stream_all(
                stream,
                recording,
                histories.open(stream.id, recording.expected),
                0.0,
                len(recording.samples) // (1 + number % 2),
            )

    def run(numbers: range) -> None:
        with ThreadPoolExecutor(min(6, max(1, server.max_streams - SPARE_STREAMS))) as pool:
            list(pool.map(run_stream, numbers))

    run(range(max(20, count // 10)))  # warm
    wait_until_free(server, 10)
    before = read_resources(server)
    with other_streams(server, recordings, count=1) as others:
        run(range(count))
    wait_until_free(server, 10)
    time.sleep(1.0)  # connections end
    after = read_resources(server)
    histories.check()
    assert after.descriptors <= before.descriptors + SPARE_DESCRIPTORS, (before, after)
    grown_kb = 1024 * (after.resident_mb - before.resident_mb)
    assert grown_kb < 20 * 1024 + 2 * count, (before, after)
    return {
        "streams": count,
        "threads_grown": after.threads - before.threads,
        "memory_grown_kb_per_stream": grown_kb / count,
        "other_streams": others.whole,
    }
