"""finalize and cancel, over each protocol."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from client.tests.helpers.fake_servers import eventually
from client.tests.helpers.fakes import expected
from penstock_client import StreamClosedError, StreamOptions

pytestmark = pytest.mark.usefixtures("no_tasks_left")


def test_finalize_ends_a_segment_and_the_stream_continues(client, recognizer, samples):
    with client.open_stream(options=StreamOptions(decoder="alsd", n_best=1)) as stream:
        stream.send(samples[:1000])
        stream.finalize(samples[1000:2000])
        stream.finalize()  # a segment without audio
        stream.send(samples[:800])
        stream.finish(samples[:100])
        results = list(stream)
    parameters = [request.parameters for request in recognizer.requests]
    assert parameters == [{"decoder": "alsd", "n_best": 1}, {"finalize": True}, {"finalize": True}, {}, {}]
    places = [(result.segment, result.is_final) for result in results]
    assert places == [(3, False), (3, True), (4, True), (5, False), (5, True)]
    texts = [expected(samples[:size]).text for size in (2000, 0, 900)]
    segments = stream.transcript.segments
    assert [segment.text for segment in segments] == texts
    assert [segment.is_final for segment in segments] == [True] * 3
    assert [" ".join(word.text for word in segment.words) for segment in segments] == texts
    assert [[a.text for a in segment.alternatives] for segment in segments] == [[f"{text} (0)"] for text in texts]
    assert stream.transcript.text == f"{texts[0]} {texts[2]}"
    assert stream.transcript.words[3].start_ms == 125  # counted from the stream's start
    assert stream.transcript.is_complete


def test_finalize_on_the_first_and_on_a_long_request(client, recognizer):
    with client.open_stream(options=StreamOptions(boost=1.0)) as stream:
        stream.finalize(np.zeros(31 * 16_000))
        assert [result.is_final for result in (*stream.poll(60), *stream.poll(1))] == [False, True]
        stream.finish()
    assert [request.parameters for request in recognizer.requests][:2] == [{"boost": 1.0}, {"finalize": True}]


def test_cancel_does_not_wait_and_frees_the_slot(client, recognizer):
    release = threading.Event()
    answered = []

    def hold(request):
        if not request.is_end:
            release.wait(60)
            answered.append(request)

    recognizer.before_answer = hold
    stream = client.open_stream()
    with stream:
        for _ in range(5):
            stream.send(np.zeros(800))
        eventually(lambda: recognizer.requests)
        stream.cancel()
        stream.cancel()
        assert not answered
        for use in (stream.poll, lambda: list(stream), lambda: stream.send([0.0])):
            with pytest.raises(StreamClosedError, match="was closed"):
                use()
        release.set()
        eventually(lambda: not recognizer.received)
    assert [request.is_end for request in recognizer.requests].count(True) == 1
    assert recognizer.requests[-1].is_end


def test_cancel_wakes_a_pending_receive(client, recognizer):
    with client.open_stream() as stream, ThreadPoolExecutor(1) as pool:
        stream.send([0.0])
        assert stream.poll(60)
        waiting = pool.submit(lambda: list(stream))
        time.sleep(0.05)
        stream.cancel()
        with pytest.raises(StreamClosedError):
            waiting.result(2)
    eventually(lambda: not recognizer.received)


def test_cancel_after_the_end_does_nothing(client, recognizer, samples):
    with client.open_stream() as stream:
        stream.finish(samples)
        assert [result.is_final for result in stream] == [True]
        stream.cancel()
        assert stream.poll() == []
    assert len(recognizer.requests) == 1
