"""Client and Stream: recordings, polls, ends; the rest is in test_transports.py."""

import itertools
import threading
import time

import numpy as np
import pytest

import penstock_client
from client.tests.helpers.fakes import RejectionError, expected
from penstock_client import Client, StreamClosedError, StreamError


def test_transcribe_reads_files(client, audio_file, samples):
    assert client.transcribe(audio_file).text == client.transcribe(str(audio_file)).text == expected(samples).text


def test_progress_grows_to_the_final_text(client, samples):
    seen = []
    final = client.transcribe(samples, request_ms=100, on_progress=lambda transcript: seen.append(transcript.text))
    assert seen[-1] == final.text
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))


def test_realtime_sends_each_request_when_its_audio_is_complete(client, recognizer):
    received_s = []
    recognizer.before_answer = lambda request: received_s.append(time.monotonic())
    start_s = time.monotonic()
    client.transcribe(np.zeros(8000, np.float32), request_ms=60, realtime=True)
    complete_s = np.minimum(0.06 * np.arange(1, 10), 0.5)
    assert len(received_s) == 9
    assert (np.array(received_s) - start_s >= complete_s).all()


def test_realtime_reports_a_failure_at_once(client, recognizer):
    def fail(request):
        raise RejectionError("in ensemble 'asr', AUDIO_INVALID: not finite")

    recognizer.before_answer = fail
    with pytest.raises(StreamError, match="not finite"):
        client.transcribe(np.zeros(1_600_000, np.float32), realtime=True)
    assert len(recognizer.requests) < 900


@pytest.mark.parametrize("request_ms", [0, -1, 0.01])
def test_a_request_has_at_least_one_sample(client, request_ms):
    with pytest.raises(ValueError, match="request_ms"):
        client.transcribe(np.zeros(10), request_ms=request_ms)


def test_poll_returns_each_result_once(client):
    with client.open_stream() as stream:
        assert stream.poll() == []
        for words in range(3):
            stream.send(np.zeros(800))
            assert [result.text.count(" ") for result in stream.poll(60)] == [words]
        assert stream.poll() == []
        stream.finish()
        assert [result.is_final for result in stream] == [True]
        assert list(stream) == []


def test_one_thread_sends_while_another_iterates(client, samples):
    with client.open_stream() as stream:

        def send():
            for chunk in np.array_split(samples, 200):
                stream.send(chunk)
            stream.finish()

        sender = threading.Thread(target=send)
        sender.start()
        results = list(stream)
        sender.join()
    assert len(results) == 201
    assert stream.transcript.text == expected(samples).text


def test_latency_is_set_by_the_last_reply_only(client):
    with client.open_stream() as stream:
        stream.send(np.zeros(800))
        assert stream.poll(60)
        assert stream.transcript.latency_s is None and not stream.transcript.is_complete
        stream.finish()
        (last,) = stream
        assert stream.transcript.latency_s == last.round_trip_s


def test_closed_stream_takes_no_more(client):
    with client.open_stream() as stream:
        pass
    stream.close()
    for use in (lambda: stream.send([0.0]), stream.finish, stream.poll, lambda: list(stream)):
        with pytest.raises(StreamClosedError, match="the stream is closed"):
            use()


def test_a_finished_stream_takes_no_more_and_rejected_samples_start_none(client, recognizer):
    with client.open_stream() as stream:
        with pytest.raises(ValueError, match="samples have shape"):
            stream.send(np.zeros((2, 2)))
        stream.finish(np.zeros(10))
        list(stream)
        assert [request.is_start for request in recognizer.requests] == [True]
        with pytest.raises(StreamClosedError, match=r"stream '.*': .*finished"):
            stream.send([0.0])


def test_client_closes_remaining_streams(url, protocol, recognizer):
    with Client(url, protocol, timeout_s=60) as client:
        stream = client.open_stream()
        stream.send([0.0])
        assert stream.poll(60) and recognizer.received
    assert not recognizer.received
    with pytest.raises(StreamClosedError):
        stream.send([0.0])


def test_a_closed_client_opens_nothing(client):
    client.close()
    with pytest.raises(StreamClosedError, match="the client is closed"):
        client.open_stream()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"url": url}, "host:port") for url in ("localhost", "localhost:", ":8001", "localhost:x", "h/x:1")),
        ({"url": "http://localhost:8000/"}, r"expected host:port, here localhost:8000 with protocol 'http'$"),
        ({"protocol": "udp"}, "'udp'"),
        *(({"timeout_s": value}, "timeout_s") for value in (0, -1, float("nan"), "10")),
    ],
    ids=str,
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Client(**({"url": "localhost:1"} | arguments))


def test_the_public_names_and_their_representations():
    with Client("localhost:1") as client, client.open_stream():
        assert repr(client) == "<Client localhost:1 grpc>"
        for options in ({"beam_size": 4}, "beam_size"):
            with pytest.raises(TypeError, match=r"options is a (dict|str), expected StreamOptions"):
                client.open_stream(options=options)
        with pytest.raises(ValueError, match="request_ms is '100', expected a number"):
            client.transcribe(np.zeros(16000, np.float32), request_ms="100")
    assert repr(penstock_client.BatchedClient(["a:1", "b:2"])) == "<BatchedClient a:1,b:2>"
    assert {"AsyncClient", "Client", "StreamOptions", "__version__"} <= set(dir(penstock_client))
