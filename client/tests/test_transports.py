"""The transports against a server on a real socket: gRPC and HTTP."""

import json
import threading
import time

import numpy as np
import pytest

from client.tests.helpers.fake_servers import THREADS_NAME, eventually
from client.tests.helpers.fakes import expected, outputs, parse_reply, texts
from penstock_client import (
    AsyncClient,
    Client,
    ConnectionLostError,
    ProtocolError,
    ReplyTimeoutError,
    StreamError,
    StreamOptions,
)
from penstock_client.limits import CLOSE_S
from penstock_client.protocol import MAX_REPLY_BYTES

pytestmark = pytest.mark.usefixtures("no_tasks_left")


def test_requests_of_any_size_arrive_complete_and_in_order(client, recognizer, samples):
    cuts = np.cumsum([0, 1, 799, 0, 1, 7777, 800, 1600, 3])
    parts = np.split(samples, cuts)
    with client.open_stream() as stream:
        for part in parts:
            stream.send(part)
        stream.finish()
        results = list(stream)

    requests = recognizer.requests
    assert [request.samples.size for request in requests] == [part.size for part in parts] + [0]
    assert np.array_equal(np.concatenate([request.samples for request in requests]), samples)
    assert len({request.stream_id for request in requests}) == 1
    assert [request.is_start for request in requests] == [True] + [False] * len(parts)
    assert [request.is_end for request in requests] == [False] * len(parts) + [True]
    assert stream.transcript.words == list(expected(samples).new_words)
    assert stream.transcript.text == results[-1].text == expected(samples).text


def test_only_the_first_request_has_options_with_their_types(client, recognizer):
    phrases = ["new york", ("λέξη 🙂", 3)]
    options = StreamOptions(decoder="aes", beam_size=3, n_best=2, lm_weight=0, boosted_phrases=phrases, boost=4)
    with client.open_stream(options=options) as stream:
        stream.send(np.zeros(31 * 16_000))  # two requests
        stream.finish()
        *interim, final = stream
    first, *others = (request.parameters for request in recognizer.requests)
    assert json.loads(first.pop("boosted_phrases")) == ["new york", ["λέξη 🙂", 3.0]]
    assert first == {"decoder": "aes", "beam_size": 3, "n_best": 2, "lm_weight": 0.0, "boost": 4.0}
    assert {name: type(value) for name, value in first.items() if name != "decoder"} == {
        "beam_size": int,
        "n_best": int,
        "lm_weight": float,
        "boost": float,
    }
    assert others == [{}, {}]
    assert [len(result.alternatives) for result in (*interim, final)] == [0, 0, 2]
    assert final.alternatives == parse_reply("s", outputs(0, 31 * 16_000, True, 2).get)[0].alternatives


def test_rejected_options_fail_their_stream_only(client, samples):
    with pytest.raises(StreamError, match=r"^OPTION_INVALID: .*lm_weight is 2\.5, but there is no model$") as error:
        client.transcribe(samples, options=StreamOptions(lm_weight=2.5))
    assert type(error.value) is StreamError
    assert client.transcribe(samples).text == expected(samples).text


def test_a_reply_that_is_too_large_is_not_read(client, recognizer, monkeypatch):
    answer, text = recognizer.answer, texts(["a" * (MAX_REPLY_BYTES + 1)])
    monkeypatch.setattr(recognizer, "answer", lambda request: answer(request) | {"TEXT": text})
    with pytest.raises(ProtocolError, match="larger than"):
        client.transcribe(np.zeros(10))
    monkeypatch.undo()
    assert client.transcribe(np.zeros(1600)).is_complete


def test_the_callers_array_may_be_reused(client, recognizer, samples):
    buffer = np.empty(1600, np.float32)
    with client.open_stream() as stream:
        for start in range(0, samples.size, 1600):
            buffer[:] = samples[start : start + 1600]
            stream.send(buffer)
        buffer[:] = np.nan
        stream.finish()
        list(stream)
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), samples)


def test_a_rejection_is_raised_after_the_results_before_it(client):
    with client.open_stream() as stream:
        for samples in ([0.0], np.zeros(800), [np.nan], [0.0]):
            stream.send(samples)
        results = iter(stream)
        assert [next(results).segment, next(results).segment] == [3, 3]
        with pytest.raises(StreamError, match="not finite"):
            next(results)
        with pytest.raises(StreamError, match="not finite"):
            stream.send([0.0])


@pytest.mark.parametrize("last_samples", [[0.0], [np.nan]], ids=["abandoned", "rejected"])
def test_closing_an_unfinished_stream_ends_it_on_the_server(client, recognizer, last_samples):
    start_s = time.monotonic()
    with client.open_stream() as stream:
        stream.send([0.0])
        stream.send(last_samples)
        eventually(lambda: len(recognizer.requests) >= 2)
    assert time.monotonic() - start_s < 60
    eventually(lambda: not recognizer.received)
    assert [request.is_end for request in recognizer.requests] == [False, False, True]


def test_closing_a_client_waits_once_for_all_its_streams(url, protocol, recognizer):
    release = threading.Event()
    recognizer.before_answer = lambda request: release.wait(120)
    streams = 30
    with Client(url, protocol) as client:
        opened = [client.open_stream() for _ in range(streams)]
        for stream in opened:
            stream.send([0.0])
        eventually(lambda: recognizer.requests)
        start_s = time.monotonic()
    took_s = time.monotonic() - start_s
    release.set()
    assert took_s < streams * CLOSE_S


def test_a_silent_server_times_out(url, protocol, recognizer):
    release = threading.Event()
    recognizer.before_answer = lambda request: release.wait(120)
    start_s = time.monotonic()
    with Client(url, protocol, timeout_s=0.3) as client, pytest.raises(ReplyTimeoutError, match=f"{url} for 0.3 s"):
        client.transcribe(np.zeros(1600))
    took_s = time.monotonic() - start_s
    release.set()
    assert 0.3 <= took_s < 60


def test_a_server_lost_before_its_reply_is_noticed(client, recognizer, wire, url):
    release = threading.Event()
    with client.open_stream() as stream:
        stream.send(np.zeros(800))
        assert len(stream.poll(60)) == 1
        recognizer.before_answer = lambda request: release.wait(120)
        stream.finish()
        eventually(lambda: len(recognizer.requests) == 2)
        start_s = time.monotonic()
        wire.cut()
        with pytest.raises(ConnectionLostError, match=url):
            list(stream)
        assert time.monotonic() - start_s < 60
    release.set()
    time.sleep(0.1)
    sent = [request.samples.size for request in recognizer.requests]
    assert sum(sent) == 800, "audio that may have been received is not sent again"


@pytest.mark.parametrize("protocol", ["http"], indirect=True)
def test_http_connection_closed_while_idle_is_opened_again(client, recognizer, wire):
    with client.open_stream() as stream:
        for _ in range(3):
            stream.send(np.zeros(800))
            assert len(stream.poll(60)) == 1
            wire.cut()
        stream.finish()
        assert len(list(stream)) == 1
    assert len(recognizer.requests) == 4


@pytest.mark.parametrize("protocol", ["http"], indirect=True)
def test_a_proxy_s_error_fails_the_streams_of_its_request_only(client, recognizer, server):
    with client.open_stream() as other, client.open_stream() as stream:
        for each in (other, stream):
            each.send(np.zeros(800))
            assert each.poll(60)
        server.statuses.append(502)
        stream.send(np.zeros(800))
        with pytest.raises(StreamError, match=r"CONNECTION_LOST: .*HTTP status 502"):
            list(stream)
        other.finish()
        assert list(other)[-1].is_final
    eventually(lambda: not recognizer.received)


async def test_more_audio_than_may_wait_arrives_whole(url, protocol, recognizer):
    """Three minutes are sent before the stream is open."""
    parts = [np.full(16_000, number / 1000, np.float32) for number in range(180)]
    async with AsyncClient(url, protocol, timeout_s=60) as client, client.open_stream() as stream:
        for part in parts:
            await stream.send(part)
        await stream.finish()
        results = [result async for result in stream]
    assert results[-1].is_final
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), np.concatenate(parts))


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_the_streams_of_a_client_share_a_call(client, server):
    streams = [client.open_stream() for _ in range(3)]
    for stream in streams:
        stream.send([0.0])
        assert stream.poll(60)
    assert server.live_calls == 1
    client.close()
    eventually(lambda: server.live_calls == 0)


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_grpc_leaves_no_thread_of_the_library_behind(client):
    def own_threads() -> int:
        return sum(not thread.name.startswith(THREADS_NAME) for thread in threading.enumerate())

    client.transcribe(np.zeros(10))
    before = own_threads()
    for _ in range(5):
        with client.open_stream() as stream:
            stream.send([0.0])
            stream.poll(60)
    eventually(lambda: own_threads() <= before)
