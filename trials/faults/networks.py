"""Connections that are cut or stall. Each trial returns its figures and raises AssertionError where it failed."""

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock_client.batched.rows import START, Row, encode_request
from trials.faults.streams import SPARE_STREAMS, wait_until_expired
from trials.server.raw_stream import RawStream, Reply
from trials.server.recordings import (
    NO_SAMPLES,
    REQUEST_SAMPLES,
    Expected,
    Histories,
    History,
    Recording,
    other_streams,
    rejection,
)
from trials.server.resources import Figures, beside_others, read_metrics, read_resources, wait_until_free
from trials.server.running import RunningServer

_LOST = ("was lost by a later stage", "STREAM_LOST: ")
"""Rejections of a stream after Triton dropped one of its requests between two models."""
_SILENT_SAMPLES = 160
_MAX_REQUEST_S = 0.1
"""Duration of a request with the default batching delay of 40 ms."""


class TcpProxy:
    """Listens on a free loopback port and forwards everything. Use as a context manager."""

    def __init__(self, port: int):
        """port: of the server, on the loopback interface."""
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._is_cut = False
        self._lock = threading.Lock()  # of the two above
        self._requests_pass, self._replies_pass = threading.Event(), threading.Event()
        self._requests_pass.set()
        self._replies_pass.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Address for the client."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self, replies_only: bool = False) -> None:
        """Forwards nothing from now on, not even the end of a connection; all sockets stay open.

        replies_only: still forwards what the client sends.
        """
        if not replies_only:
            self._requests_pass.clear()
        self._replies_pass.clear()

    def cut(self) -> None:
        """Resets all connections and accepts no others. Stalled data is lost."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        with self._lock:
            self._is_cut = True
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._requests_pass.set()  # wakes stalled threads: their sockets are closed
        self._replies_pass.set()

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._requests_pass.wait()
            with self._lock:
                if self._is_cut:
                    client.close()
                    return
                server = socket.create_connection(self._target)
                self._ends += [client, server]
            for way in ((client, server, self._requests_pass), (server, client, self._replies_pass)):
                threading.Thread(target=_pump, args=way, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, may_pass: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            may_pass.wait()
            sink.sendall(data)
    may_pass.wait()
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@beside_others
def cut_networks(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A connection is cut between two requests: the stream goes on over a new one, before the idle timeout."""
    histories = Histories()
    for number in range(count):
        recording, middle = recordings[number % len(recordings)], len(recordings[0].samples) // 2
        history = histories.open(f"cut-{number}", recording.expected)
        with TcpProxy(server.ports.grpc) as proxy, RawStream(proxy.url, history.name, timeout_s=2) as stream:
            history.replies.append(stream.send(recording.samples[:middle], start=True))
            proxy.cut()
            rejection(lambda stream=stream: stream.send(NO_SAMPLES))
        with RawStream(server.url("grpc"), history.name) as again:
            history.replies.append(again.send(recording.samples[middle:], end=True))
    histories.check()
    return {"streams": count}


@beside_others
def stalled_networks(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Connections stall in mid-stream, all sockets open: the client's request times out, the stream expires."""
    timeout_s, stalled, reported_s, freed_s = 1.0, 0, [], []
    while stalled < count:
        some = min(max(1, server.max_streams - SPARE_STREAMS), count - stalled)
        expired = read_metrics(server)["streams_expired_total"]
        names = [f"stalled-{stalled + i}" for i in range(some)]
        with _stalled_streams(server, recordings, names, timeout_s) as streams, ThreadPoolExecutor(some) as pool:
            silent_since = time.monotonic()
            reported_s += pool.map(_time_until_error, streams)
            freed_s.append(wait_until_expired(server, expired + some, silent_since))
        stalled += some
    assert timeout_s <= min(reported_s) and max(reported_s) < timeout_s + 1.0, reported_s
    assert max(freed_s) < 1.0, freed_s
    return {"clients": stalled, "reported_s_max": max(reported_s), "freed_after_timeout_s_max": max(freed_s)}


@contextmanager
def _stalled_streams(
    server: RunningServer, recordings: list[Recording], names: list[str], timeout_s: float
) -> Iterator[list[RawStream]]:
    """Yields streams that have begun, each over a proxy of its own that has stalled since."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(server.ports.grpc)) for _ in names]
        streams = [
            stack.enter_context(RawStream(proxy.url, name, timeout_s=timeout_s))
            for proxy, name in zip(proxies, names, strict=True)
        ]
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda stream: stream.send(recordings[0].samples[:REQUEST_SAMPLES], start=True), streams))
        for proxy in proxies:
            proxy.stall()
        yield streams


def _time_until_error(stream: RawStream) -> float:
    """Returns the seconds until the client of a stalled connection raises DEADLINE_EXCEEDED."""
    started = time.monotonic()
    error = rejection(lambda: stream.send(NO_SAMPLES))
    assert "Deadline Exceeded" in error, error
    return time.monotonic() - started


@beside_others
def cut_requests(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """A connection is cut with a request in flight: its client gets an error and continues on a new connection.

    In a third of the cases the request is lost, in a third the reply, and in the rest either or neither. Words may be
    missing then; none is repeated.
    """
    chance, outcomes = random.Random(count), Counter()
    for number in range(count):
        cut = (_lose_request, _lose_reply, _cut_at_random)[number % 3]
        cut(server, recordings[number % len(recordings)], f"in-flight-{number}", chance.uniform(0, 0.15), outcomes)
    return dict(outcomes)


def _cut_in_flight(
    server: RunningServer,
    recording: Recording,
    name: str,
    interfere: Callable[[TcpProxy], None],
    wait: Callable[[], object],
) -> tuple[list[Reply], str | None]:
    """Cuts a stream's connection after the request with its second half and `wait`; returns its replies and error."""
    middle = len(recording.samples) // 2
    with (
        TcpProxy(server.ports.grpc) as proxy,
        RawStream(proxy.url, name, timeout_s=20) as stream,
        ThreadPoolExecutor(1) as pool,
    ):
        replies = [stream.send(recording.samples[:middle], start=True)]
        interfere(proxy)
        sending = pool.submit(stream.send, recording.samples[middle:])
        wait()
        proxy.cut()
        try:
            return [*replies, sending.result(timeout=5)], None
        except InferenceServerException as error:
            assert "UNAVAILABLE" in str(error), error
            return replies, str(error)


def _lose_request(server: RunningServer, recording: Recording, name: str, pause_s: float, outcomes: Counter) -> None:
    """Sent again, the request is processed once."""
    replies, error = _cut_in_flight(server, recording, name, TcpProxy.stall, lambda: time.sleep(pause_s))
    assert error
    with RawStream(server.url("grpc"), name) as again:
        replies.append(again.send(recording.samples[len(recording.samples) // 2 :], end=True))
    problems = History(name, recording.expected, replies).problems()
    assert not problems, problems
    outcomes["sent_again"] += 1


def _lose_reply(server: RunningServer, recording: Recording, name: str, pause_s: float, outcomes: Counter) -> None:
    """The words of the lost reply are not repeated; all others arrive."""

    def wait() -> None:
        time.sleep(0.1 + pause_s)
        _send_half(server, recording, f"{name}-behind")  # sent later and already answered

    replies, error = _cut_in_flight(server, recording, name, lambda proxy: proxy.stall(replies_only=True), wait)
    assert error
    with RawStream(server.url("grpc"), name) as again:
        replies.append(again.send(NO_SAMPLES, end=True))
    assert replies[-1].text == recording.expected.text, (replies, recording.expected)
    _check_once(replies, recording.expected, may_miss=True)
    outcomes["reply_lost"] += 1


def _cut_at_random(server: RunningServer, recording: Recording, name: str, pause_s: float, outcomes: Counter) -> None:
    """The request was processed, or it was not, or the stream is lost."""
    half = _send_half(server, recording, f"{name}-half")
    replies, error = _cut_in_flight(server, recording, name, lambda _: None, lambda: time.sleep(pause_s))
    with RawStream(server.url("grpc"), name) as again:
        try:
            replies.append(again.send(NO_SAMPLES, end=True))
        except InferenceServerException as error_again:
            assert error and any(words in str(error_again) for words in _LOST), error_again
            problems = History(name, recording.expected, replies, str(error_again)).problems()
            assert not problems, problems
            outcomes["stream_lost"] += 1
            return
    has_arrived = replies[-1].processed_s > half.processed_s
    expected = recording.expected if has_arrived else Expected(half.text, half.words, half.tokens)
    assert replies[-1].text == expected.text, (error, replies, expected)
    _check_once(replies, expected, may_miss=has_arrived and error is not None)
    outcomes["answered" if error is None else "reply_lost" if has_arrived else "not_arrived"] += 1


def _send_half(server: RunningServer, recording: Recording, name: str) -> Reply:
    """Returns the reply to the first half of a recording."""
    with RawStream(server.url("grpc"), name) as stream:
        return stream.send(recording.samples[: len(recording.samples) // 2], start=True, end=True)


def _check_once(replies: list[Reply], whole: Expected, may_miss: bool) -> None:
    """Checks that the replies hold each word once, in order; may_miss: a reply before the last was lost."""
    for what in ("words", "tokens"):
        *first, last = (getattr(reply, what) for reply in replies)
        first, expected = tuple(itertools.chain(*first)), getattr(whole, what)
        missed = len(expected) - len(first) - len(last)
        message = f"{what} {first} and then {last}, expected {expected}"
        assert missed >= 0 if may_miss else missed == 0, message
        assert first + last == expected[: len(first)] + expected[len(expected) - len(last) :], message


def unread_replies(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Two clients, a direct and a batched one, send `count` requests on one gRPC call each and read no reply."""
    before = read_resources(server)
    with (
        other_streams(server, recordings, count=1) as others,
        triton_grpc.grpc.insecure_channel(server.url("grpc")) as channel,
    ):
        stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = []

        def requests(silent_request: Callable[[bool], object]) -> Iterator[object]:
            for number in range(count):
                sent.append(number)
                yield silent_request(number == 0)
            time.sleep(1.0)

        calls = [stub.ModelStreamInfer(requests(one)) for one in (_silent_request, _silent_batched_request)]
        deadline = time.monotonic() + 120
        while len(sent) < len(calls) * count and time.monotonic() < deadline:
            time.sleep(0.05)
        during = read_resources(server)
        for call in calls:
            call.cancel()
    assert len(sent) == len(calls) * count, f"only {len(sent)} requests were accepted"
    # Those of a client are processed one after another, each in a batch of its own.
    wait_until_free(server, server.idle_s + 20 + len(sent) * _MAX_REQUEST_S)
    return {
        "requests": len(sent),
        "memory_during_mb": during.resident_mb - before.resident_mb,
        "other_streams": others.whole,
    }


def _silent_request(is_start: bool):
    """Returns a protobuf request to `asr` with silence."""
    audio = np.zeros(_SILENT_SAMPLES, np.float32)
    request = triton_grpc.service_pb2.ModelInferRequest(model_name="asr", raw_input_contents=[audio.tobytes()])
    tensor = request.inputs.add(name="AUDIO", datatype="FP32")
    tensor.shape.extend([1, len(audio)])
    request.parameters["sequence_id"].string_param = "unread"
    request.parameters["sequence_start"].bool_param = is_start
    return request


def _silent_batched_request(is_start: bool):
    """Returns a protobuf request to `asr_batch` with silence."""
    return encode_request("unread", [Row(1, np.zeros(_SILENT_SAMPLES, np.int16), START * is_start)])
