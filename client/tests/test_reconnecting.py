"""Streams that go on after a lost connection: the result is that of a connection that was not lost."""

import contextlib
import json
import re
import threading

import numpy as np
import pytest

from client.tests.helpers.fake_servers import DRAINING, UNLOADED, Restart, eventually
from client.tests.helpers.fakes import RejectionError, expected, outputs, parse_reply
from penstock_client import Client, ConnectionOptions, StreamOptions, limits
from penstock_client.batched.replay import Replay
from penstock_client.batched.rows import END, START, Part

pytestmark = pytest.mark.usefixtures("no_tasks_left", "one_row_per_request")
TIMES = ConnectionOptions(reconnect_s=60)


@pytest.fixture
def client(url, protocol):
    with Client(url, protocol, timeout_s=60, connection_options=TIMES) as client:
        yield client


@pytest.fixture
def taken(monkeypatch):
    """The results that the client has received."""
    results, take = [], Replay.new_result
    monkeypatch.setattr(Replay, "new_result", lambda replay, result: results.append(result) or take(replay, result))
    return results


def cut_at(recognizer, wire, *numbers, when=lambda: True):
    """Cuts the connections at these requests, once `when`; the lost stream stays open on the server.

    A stream goes on only if it has had a result, which a cut could destroy on its way.
    """

    def cut(request):
        if len(recognizer.requests) in numbers:
            eventually(when)
            wire.cut()
            raise RejectionError("not received")

    recognizer.before_answer = cut


@pytest.mark.parametrize("numbers", [(7,), (7, 9, 21), (24,)], ids=["once", "again and again", "at the end"])
def test_a_transcript_has_no_gap(client, recognizer, wire, samples, taken, numbers):
    cut_at(recognizer, wire, *numbers, when=lambda: taken)
    transcript = client.transcribe(samples, request_ms=100)
    result = expected(samples)
    assert (transcript.text, tuple(transcript.words)) == (result.text, result.new_words)
    assert (tuple(transcript.tokens), transcript.is_complete) == (result.new_tokens, True)
    assert transcript.audio_processed_s == pytest.approx(2.4)


def test_only_the_current_segment_is_sent_again(client, recognizer, wire, samples, taken):
    cut_at(recognizer, wire, 6, when=lambda: any(result.is_final for result in taken))
    options = StreamOptions(decoder="alsd", n_best=1)
    with client.open_stream(options) as stream:
        for index, block in enumerate(np.split(samples, 12), start=1):
            (stream.finalize if index % 4 == 0 else stream.send)(block)
            stream.poll()
        stream.finish()
        list(stream)
    assert stream.transcript.is_complete
    start, again = [request for request in recognizer.requests if request.is_start]
    assert start.stream_id != again.stream_id
    assert again.parameters == start.parameters == {"decoder": "alsd", "n_best": 1}
    segments = stream.transcript.segments
    assert [segment.text for segment in segments[:3]] == [expected(samples[:12_800]).text] * 3
    assert [segment.words[0].start_ms for segment in segments[:3]] == [0, 800, 1600]
    assert segments[1].alternatives[0].words[0].start_ms == 800
    lost = [request.samples for request in recognizer.requests if request.stream_id == start.stream_id]
    resumed = [request.samples for request in recognizer.requests if request.stream_id == again.stream_id]
    assert np.array_equal(np.concatenate(lost[:5]), samples[:16_000])  # more may have been on their way
    assert np.array_equal(np.concatenate(resumed), samples[12_800:])


def test_a_stream_that_the_server_lost_is_started_again(client, recognizer, samples):
    def lose(request):
        if len(recognizer.requests) == 9:
            recognizer.received.clear()
            raise RejectionError("in ensemble 'asr', STREAM_LOST: the stage has ended")

    recognizer.before_answer = lose
    assert client.transcribe(samples, request_ms=100).text == expected(samples).text


def test_a_stream_can_be_closed_while_it_reconnects(client, recognizer, wire, samples, caplog):
    with client.open_stream() as stream:
        stream.send(samples[:800])
        assert stream.poll(60)
        wire.close()
        threading.Timer(0.5, stream.cancel).start()
        with pytest.raises(Exception, match=r"CONNECTION_LOST|STREAM_CLOSED|SERVER_UNREACHABLE"):
            while True:
                stream.send(samples[:800])
                stream.poll(0.01)


def test_a_replay_adds_the_time_of_the_loss_to_the_round_trip():
    clock = iter([1.0, 5.0])
    replay = Replay(lambda: next(clock))
    replay.add(Part(np.zeros(800, np.float32), START | END, 800, 0))
    replay.restart()
    result = parse_reply("s", outputs(0, 800, True).get)[0]
    assert replay.new_result(result).round_trip_s == 4.0


def test_the_command_goes_on_and_says_so(run, audio_file, recognizer, wire, taken):
    cut_at(recognizer, wire, 7, when=lambda: any(result.is_final for result in taken))
    status, out, err = run(audio_file, "--json", "--request-ms", "100", "--finalize-every", "0.5", "--reconnect", "60")
    document = json.loads(out)
    assert status == 0
    assert [segment["words"] for segment in document["segments"]] == [10, 10, 10, 10, 8]
    assert "missing_from_s" not in document
    lost, again = err.splitlines()
    assert re.fullmatch("penstock-client: warning: [A-Z_]+: .*; reconnecting for up to 60 s", lost)
    message = r"reconnected after \d+\.\d s; sent again from 0\.50 s, nothing is missing"
    assert re.fullmatch(f"penstock-client: warning: {message}", again)


@pytest.fixture
def restarted(server, wire, taken, monkeypatch):
    """A server that drains while a stream is open, and starts again: it is gone for several attempts to reconnect."""
    monkeypatch.setattr(limits, "LONGEST_PAUSE_S", 0.1)
    messages = [DRAINING, DRAINING, UNLOADED, "Request for unknown model: 'asr' is not found"]
    with contextlib.closing(Restart(server, wire, 7, messages, lambda: taken)) as restart:
        yield restart.recognizer


def test_a_graceful_restart_loses_nothing(run, audio_file, samples, restarted):
    status, out, err = run(audio_file, "--request-ms", "100", "--reconnect", "60", "--timeout", "60")
    assert (status, out) == (0, expected(samples).text + "\n"), err
    assert "nothing is missing" in err  # gRPC may lose the reason SERVER_DRAINING in a write to the ended call
    assert restarted.requests[0].is_start and restarted.requests[-1].is_end


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_an_error_that_no_reconnection_helps_leaves_the_text_so_far(run, audio_file, recognizer, taken, arguments):
    def reject(request):
        if len(recognizer.requests) == 5:
            eventually(lambda: taken)
            raise RejectionError("in ensemble 'asr', AUDIO_INVALID: stream 's': 1 of 9 samples are not finite")

    recognizer.before_answer = reject
    status, out, err = run(audio_file, "--request-ms", "100", "--simulate-realtime", *arguments)
    (end_s,) = re.findall(r"error: AUDIO_INVALID: .*; the text ends at (\S+) s of the audio\n$", err)
    document = json.loads(out) if arguments else {"text": out, "missing_from_s": float(end_s)}
    assert (status, document["missing_from_s"]) == (1, pytest.approx(0.4, abs=0.01))
    assert document["text"].strip() == expected(samples_until(0.4)).text


def samples_until(end_s):
    return np.zeros(round(16_000 * end_s))


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--format", "srt"]])
def test_a_server_that_stays_away_leaves_the_text_so_far(run, audio_file, recognizer, wire, taken, arguments):
    def die(request):
        if len(recognizer.requests) == 5:
            eventually(lambda: taken)
            wire.close()

    recognizer.before_answer = die
    status, out, err = run(audio_file, "--request-ms", "100", "--simulate-realtime", "--reconnect", "0.3", *arguments)
    assert status == 1
    (end_s,) = re.findall(r"; the text ends at (\S+) s of the audio\n$", err)
    if arguments == ["--json"]:
        document = json.loads(out)
        assert document["missing_from_s"] == pytest.approx(float(end_s), abs=0.01)
        out = document["text"]
    assert 0 < float(end_s) <= 0.4 and "wörd0" in out
