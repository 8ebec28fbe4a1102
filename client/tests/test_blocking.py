"""The threaded client as a facade over an event loop: interruptions, garbage collection, forked processes."""

import gc
import signal
import subprocess
import sys
import threading

import pytest

from client.tests.helpers.fake_servers import eventually
from client.tests.helpers.fakes import expected
from penstock_client import Client, ServerUnreachableError
from penstock_client.batched import grpc_call
from penstock_client.batched.blocking import event_loop_thread
from penstock_client.batched.engine import MAX_UNANSWERED_REQUESTS, EngineStream

FORK = """
import os, sys
import numpy as np
from penstock_client import Client, ClientError
url, protocol = sys.argv[1:]
client = Client(url, protocol, timeout_s=60)
print(client.transcribe(np.zeros(800, np.float32)).text)
stream = client.open_stream()
stream.send(np.zeros(800, np.float32))
sys.stdout.flush()
if (child := os.fork()) == 0:
    for use in (lambda: client.transcribe(np.zeros(800, np.float32)).text, stream.poll, lambda: stream.send([0.0])):
        try:
            print(use())
        except ClientError as error:
            print(error.code)
    client.close()
    if protocol == "http":
        with Client(url, protocol, timeout_s=60) as own:
            print(own.transcribe(np.zeros(800, np.float32)).text)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
stream.finish()
print([result.text for result in stream][-1])
"""


@pytest.fixture
def ctrl_c(monkeypatch):
    """Interrupts the main thread, which runs the test, after a moment."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timers = []

    def interrupt_soon():
        timers.append(threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]))
        timers[-1].start()

    yield interrupt_soon
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_waiting_for_a_result_loses_nothing(client, samples, ctrl_c):
    with client.open_stream() as stream:
        stream.send(samples[:800])
        assert stream.poll(60)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
            stream.poll(60)
        stream.finish(samples[800:])
        list(stream)
    assert stream.transcript.words == list(expected(samples).new_words)


def test_ctrl_c_while_there_is_no_room_sends_nothing(client, recognizer, samples, ctrl_c):
    release = threading.Event()
    recognizer.before_answer = lambda request: release.wait(120)
    with client.open_stream() as stream:
        for number in range(MAX_UNANSWERED_REQUESTS):
            stream.send(samples[100 * number : 100 * (number + 1)])
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
            stream.send(samples[100 * MAX_UNANSWERED_REQUESTS :])
        release.set()
        stream.finish(samples[100 * MAX_UNANSWERED_REQUESTS :])
        list(stream)
    assert stream.transcript.text == expected(samples).text


def test_an_abandoned_stream_is_ended_on_the_server(client, recognizer):
    stream = client.open_stream()
    stream.send([0.0])
    assert stream.poll(60)
    del stream
    gc.collect()
    eventually(lambda: not recognizer.received)


def test_the_garbage_collector_may_close_a_client_in_the_event_loop(url, protocol, recognizer):
    client = Client(url, protocol)
    stream = client.open_stream()
    stream.send([0.0])
    assert stream.poll(60)
    event_loop_thread().post(client.close)
    eventually(lambda: not recognizer.received)


def test_a_bug_in_the_event_loop_does_not_leave_a_thread_waiting(client, monkeypatch):
    async def fail(stream, wait_s):
        raise RuntimeError("a bug")

    monkeypatch.setattr(EngineStream, "receive", fail)
    with client.open_stream() as stream:
        stream.send([0.0])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a bug"):
                list(stream)


def test_any_wait_is_accepted(client):
    with client.open_stream() as stream:
        stream.send([0.0])
        assert len(stream.poll(float("inf"))) == 1
        assert stream.poll(-1.0) == []


def test_a_forked_process(url, protocol):
    """The client belongs to the first process, which is not disturbed."""
    done = subprocess.run([sys.executable, "-c", FORK, url, protocol], capture_output=True, text=True, timeout=120)
    first, *child, last = done.stdout.splitlines()
    assert (first, last, done.returncode) == ("wörd0", "wörd0", 0), done.stderr
    expected_codes = ["STREAM_CLOSED"] * 3 + ["wörd0"] * (protocol == "http")
    # gRPC itself may have ended the process.
    assert child == expected_codes or (protocol == "grpc" and child == []), done.stderr
    assert "Traceback" not in done.stderr and "Unclosed" not in done.stderr


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_grpc_cannot_be_used_in_a_forked_process(url, monkeypatch):
    monkeypatch.setitem(grpc_call._aio_process, "id", 1)
    with Client(url) as client, pytest.raises(ServerUnreachableError, match="forked from one that uses gRPC"):
        client.transcribe([0.0])
