"""Fault trials whose culprit is a client. Each returns what it measured and raises AssertionError where it failed.

`count` says how much of it; tests/server/test_faults.py does a little, scripts/fault_trials.py all of it.
"""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.server.conftest import RunningServer
from tests.server.history import History, Ledger
from tests.server.raw_stream import RawStream
from tests.server.resources import SPARE_DESCRIPTORS, Figures, held_by, read_metrics, wait_until_free
from tests.server.voices import NO_SAMPLES, PIECE_SAMPLES, Doomed, Voice, neighbours, refused, speak, touch

SPARE_STREAMS = 3
"""The neighbour, its next recording, and the probe of `penstock serve`."""
_REFUSED_WITHIN_MS = 100
_LONGEST_REQUEST_S = 0.1
"""Of a request that waits for company: the delivered queue delay is 40 ms."""
LIVE_PIECE_S = 0.2
"""Audio in a request of a live stream, which is also the time between two of them."""


def killed_clients(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """Client processes end by SIGKILL in mid-stream. Nobody tells the server, so it detects them by their silence."""
    killed, freed_s = 0, []
    with neighbours(server, voices, count=1) as ledger:
        while killed < count:
            some = min(max(1, server.max_streams - SPARE_STREAMS), count - killed)
            expired = read_metrics(server)["streams_expired_total"]
            clients = [
                Doomed(server.url("grpc"), f"doomed-{killed + i}", voices[i % len(voices)].samples) for i in range(some)
            ]
            for client in clients:
                client.wait_until_going()
            for client in clients:
                client.kill()
            killed += some
            freed_s.append(wait_until_expired(server, expired + some, time.monotonic()))
    assert max(freed_s) < 1.0, freed_s
    return {"clients": killed, "freed_after_detection_s_max": max(freed_s), "neighbours": ledger.whole}


def wait_until_expired(server: RunningServer, expired: float, silent_since_s: float) -> float:
    """Seconds after the idle limit until `expired` streams were, since the server's start, and all slots but one are
    free: a neighbour holds that."""
    while count_expired(server) < expired or count_free(server) < server.max_streams - 1:
        assert time.monotonic() - silent_since_s < server.idle_s + 10
        time.sleep(0.02)
    return time.monotonic() - silent_since_s - server.idle_s


def count_expired(server: RunningServer) -> float:
    """Streams that were expired so far, after a look at who is overdue."""
    touch(server)
    return read_metrics(server)["streams_expired_total"]


def count_free(server: RunningServer) -> float:
    """Streams that could start now."""
    return read_metrics(server)["slots_free"]


def never_ended(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """The clock of expiry: a stream lives while its pauses are short, and is expired once one is too long."""
    late, ledger = [], Ledger()
    wait_until_free(server, server.idle_s + 10)  # of streams that others have left behind
    with neighbours(server, voices, count=1) as nearby:
        for number in range(count):
            voice = voices[number % len(voices)]
            expired = read_metrics(server)["streams_expired_total"]
            with (
                RawStream(server.url("grpc"), f"slow-{number}") as slow,
                RawStream(server.url("grpc"), f"mute-{number}") as mute,
                ThreadPoolExecutor(1) as pool,
            ):
                history, third = ledger.open(slow.id, voice.spoken), len(voice.samples) // 3 + 1
                speaking = pool.submit(speak, slow, voice, history, server.idle_s * 0.6, third)
                silent_since = time.monotonic()  # the server's clock starts when this has reached it
                mute.send(voice.samples[:PIECE_SAMPLES], start=True)
                while count_expired(server) == expired:
                    assert time.monotonic() - silent_since < server.idle_s + 10
                    time.sleep(0.02)
                late.append(time.monotonic() - silent_since - server.idle_s)
                assert late[-1] > -0.05
                told = refused(lambda mute=mute: mute.send(NO_SAMPLES))
                assert "expired after" in told or "START flag" in told, told
                speaking.result(timeout=60)
    ledger.check()
    assert max(late) < 1.0, late
    return {"streams": 2 * count, "expired_too_late_s_max": max(late), "neighbours": nearby.whole}


def started_twice(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """START on a live stream: what was said before is gone, and the new stream is as any other."""
    ledger = Ledger()
    with neighbours(server, voices, count=1) as nearby:
        for number in range(count):
            first, second = voices[number % len(voices)], voices[(number + 1) % len(voices)]
            with RawStream(server.url("grpc"), f"twice-{number}") as stream:
                stream.send(first.samples[:20000], start=True)
                speak(stream, second, ledger.open(stream.id, second.spoken))
    ledger.check()
    return {"streams": count, "neighbours": nearby.whole}


def two_on_one_id(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """Two clients call their streams the same at once: they spoil each other's words, and nobody else's."""
    answers = refusals = 0
    with neighbours(server, voices, count=1) as nearby, ThreadPoolExecutor(2) as pool:
        for number in range(count):
            name = f"shared-{number}"

            def talk(voice: Voice, name: str = name) -> tuple[int, int]:
                told = lost = 0
                with RawStream(server.url("grpc"), name) as stream:
                    for start in range(0, len(voice.samples), 1600):
                        try:
                            stream.send(voice.samples[start : start + 1600], start=start == 0)
                            told += 1
                        except InferenceServerException as error:
                            assert any(w in str(error) for w in ("not open", "START flag", "no longer holds")), error
                            lost += 1
                return told, lost

            for told, lost in pool.map(talk, voices[:2]):
                answers, refusals = answers + told, refusals + lost
            with RawStream(server.url("grpc"), name) as stream:
                stream.send(NO_SAMPLES, end=True)
    return {"pairs": count, "answers": answers, "refusals": refusals, "neighbours": nearby.whole}


def after_the_end(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """A request behind END is refused, over both protocols, and the id is free for another stream."""
    ledger = Ledger()
    with neighbours(server, voices, count=1) as nearby:
        for number, protocol in zip(range(count), itertools.cycle(["grpc", "http"]), strict=False):
            voice = voices[number % len(voices)]
            with RawStream(server.url(protocol), f"ended-{number}", protocol) as stream:
                for _ in range(2):
                    speak(stream, voice, ledger.open(stream.id, voice.spoken))
                    assert "START flag" in refused(lambda stream=stream: stream.send(NO_SAMPLES))
                    assert "START flag" in refused(lambda stream=stream: stream.send(NO_SAMPLES, end=True))
    ledger.check()
    return {"streams": 2 * count, "neighbours": nearby.whole}


def too_many(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """A fifth more streams than slots, `count` times: who finds none is told at once; who has one streams on."""
    refused_ms, ledger, extra = [], Ledger(), max(1, server.max_streams // 5)
    for number in range(count):
        with _full_house(server, voices, ledger, str(number)) as histories:
            for i in range(extra):
                told_before = _count_replies(histories)
                with RawStream(server.url("grpc"), f"extra-{number}-{i}") as stream:
                    started = time.monotonic()
                    told = refused(lambda stream=stream: stream.send(voices[0].samples, start=True))
                    refused_ms.append(1000 * (time.monotonic() - started))
                    assert f"all {server.max_streams} stream slots are taken" in told
                    assert "is not open" in refused(lambda stream=stream: stream.send(NO_SAMPLES, end=True))
                while _count_replies(histories) == told_before:  # the others go on
                    assert time.monotonic() - started < 10, "nobody else was served"
                    time.sleep(0.02)
        with RawStream(server.url("grpc"), f"next-{number}") as stream:
            speak(stream, voices[0], ledger.open(stream.id, voices[0].spoken))
    ledger.check()
    too_late = sum(ms >= _REFUSED_WITHIN_MS for ms in refused_ms)
    assert max(refused_ms) < 1000 and too_late <= max(1, len(refused_ms) // 20), refused_ms
    return {"refused": len(refused_ms), "refused_ms_max": max(refused_ms), "over_100_ms": too_late,
            "admitted": ledger.whole}  # fmt: skip


def _count_replies(histories: list[History]) -> int:
    return sum(len(history.replies) for history in histories)


@contextmanager
def _full_house(server: RunningServer, voices: list[Voice], ledger: Ledger, name: str) -> Iterator[list[History]]:
    """As many streams as slots, which send their audio as if it were live and end afterwards."""
    is_over, jobs, histories = Event(), [], []
    with ThreadPoolExecutor(server.max_streams) as pool:
        for i in range(server.max_streams):
            voice = voices[i % len(voices)]
            histories.append(ledger.open(f"admitted-{name}-{i}", voice.spoken))
            jobs.append(pool.submit(_speak_live, server, voice, histories[-1], is_over))
        try:
            deadline = time.monotonic() + 30
            while not all(history.replies for history in histories):  # everybody has a slot
                assert time.monotonic() < deadline and not any(job.done() for job in jobs), histories
                time.sleep(0.01)
            yield histories
        finally:
            is_over.set()
    for job in jobs:
        job.result()


def _speak_live(server: RunningServer, voice: Voice, history: History, is_over: Event) -> None:
    """A stream that goes on until `is_over`, with empty requests where its audio does not last."""
    place, piece_samples = 0, int(16000 * LIVE_PIECE_S)
    with RawStream(server.url("grpc"), history.name) as stream:
        while not is_over.wait(LIVE_PIECE_S if place else 0.0):
            end = min(place + piece_samples, len(voice.samples) - 1)
            history.replies.append(stream.send(voice.samples[place:end], start=place == 0))
            place = end
        history.replies.append(stream.send(voice.samples[place:], end=True))


def never_reading(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """A client sends `count` requests on one call and reads no reply."""
    before = held_by(server)
    with (
        neighbours(server, voices, count=1) as nearby,
        triton_grpc.grpc.insecure_channel(server.url("grpc")) as channel,
    ):
        stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = []

        def requests():
            for number in range(count):
                sent.append(number)
                yield silent_request("unread", is_start=number == 0)
            time.sleep(1.0)

        call = stub.ModelStreamInfer(requests())
        deadline = time.monotonic() + 120
        while len(sent) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        during = held_by(server)
        call.cancel()
    assert len(sent) == count, f"only {len(sent)} requests were taken"
    # Those that it has sent are carried out one after another, each in a batch of its own.
    wait_until_free(server, server.idle_s + 20 + count * _LONGEST_REQUEST_S)
    return {
        "requests": len(sent),
        "memory_during_mb": during.resident_mb - before.resident_mb,
        "neighbours": nearby.whole,
    }


def silent_request(stream_id: str, is_start: bool, samples: int = 160):
    """A protobuf request with silence."""
    request = triton_grpc.service_pb2.ModelInferRequest(model_name="asr", raw_input_contents=[bytes(4 * samples)])
    tensor = request.inputs.add(name="AUDIO", datatype="FP32")
    tensor.shape.extend([1, samples])
    request.parameters["sequence_id"].string_param = stream_id
    request.parameters["sequence_start"].bool_param = is_start
    return request


def short_streams(server: RunningServer, voices: list[Voice], count: int) -> Figures:
    """`count` short streams over both protocols: no slot, no descriptor and no memory stays behind."""
    ledger = Ledger()

    def talk(number: int) -> None:
        voice, protocol = voices[number % len(voices)], ("grpc", "http")[number % 2]
        with RawStream(server.url(protocol), f"short-{number}-{time.monotonic_ns()}", protocol) as stream:
            speak(stream, voice, ledger.open(stream.id, voice.spoken), 0.0, len(voice.samples) // (1 + number % 2))

    def run(numbers: range) -> None:
        with ThreadPoolExecutor(min(6, max(1, server.max_streams - SPARE_STREAMS))) as pool:
            list(pool.map(talk, numbers))

    run(range(max(20, count // 10)))  # warm
    wait_until_free(server, 10)
    before = held_by(server)
    with neighbours(server, voices, count=1) as nearby:
        run(range(count))
    wait_until_free(server, 10)
    time.sleep(1.0)  # connections end
    after = held_by(server)
    ledger.check()
    assert after.descriptors <= before.descriptors + SPARE_DESCRIPTORS, (before, after)
    grown_kb = 1024 * (after.resident_mb - before.resident_mb)
    assert grown_kb < 20 * 1024 + 2 * count, (before, after)
    return {
        "streams": count,
        "threads_grown": after.threads - before.threads,
        "memory_grown_kb_a_stream": grown_kb / count,
        "neighbours": nearby.whole,
    }
