"""Speakers of the words of a stream, over every client and protocol."""

import asyncio
import json
import math

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, connected
from client.tests.helpers.fake_servers import GrpcServer, HttpServer, eventually
from client.tests.helpers.speaking import AUDIO, EXPECTED, ON, serving
from penstock_client import (
    AsyncClient,
    BatchedClient,
    Client,
    ConnectionOptions,
    ServerFullError,
    ServerUnreachableError,
    SpeakersNotServedError,
    StreamOptions,
    Transcript,
    Word,
)
from penstock_client.options import for_file
from penstock_client.speakers.probabilities import Probabilities

pytestmark = pytest.mark.anyio


FULL = "STREAM_LIMIT: .*all slots are taken"


async def _batched(server, options, audio, **arguments):
    found = Transcript()
    async with connected(server, **arguments) as client, await client.open_stream(options) as stream:

        async def push():
            for start in range(0, len(audio), 1000):
                await stream.push(audio[start : start + 1000])
            await stream.finish()

        pushing = asyncio.create_task(push())
        async for result in stream:
            found.add(result)
        await pushing
    return found


async def _asyncio(server, options, audio):
    async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client:
        return await client.transcribe(audio, options=options, request_ms=50)


def _threads(server, options, audio, protocol="grpc"):
    with Client(f"127.0.0.1:{server.port}", protocol, timeout_s=WAIT_S) as client:
        return client.transcribe(audio, options=options, request_ms=50)


CLIENTS = {
    "threads": (GrpcServer, _threads),
    "http": (HttpServer, lambda *given: _threads(*given, protocol="http")),
    "asyncio": (GrpcServer, lambda *given: asyncio.run(_asyncio(*given))),
    "batched": (GrpcServer, lambda *given: asyncio.run(_batched(*given))),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_names_the_speaker_of_each_word(name):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        transcript = transcribe(server, ON, AUDIO)
        assert [word.speaker for word in transcript.words] == EXPECTED
        without = transcribe(server, StreamOptions(), AUDIO)
        eventually(lambda: not server.speakers.audio)
    assert {word.speaker for word in without.words} == {None}
    assert [word.text for word in without.words] == [word.text for word in transcript.words]
    sent = np.concatenate([request.samples for request in server.speakers.requests])
    assert np.array_equal(sent, AUDIO)
    recognizer = server.batch.recognizer if kind is GrpcServer else server.recognizer
    assert not any("speakers" in request.parameters for request in recognizer.requests)


@pytest.mark.parametrize("name", CLIENTS)
def test_speakers_that_are_not_served_are_an_error_with_a_code(name):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        server.speakers.is_served = False
        with pytest.raises(SpeakersNotServedError, match=r"SPEAKERS_NOT_SERVED: .*--speakers BUNDLE"):
            transcribe(server, ON, AUDIO)
        assert len(transcribe(server, StreamOptions(speakers="off"), AUDIO).words) == 16


@pytest.mark.parametrize("name", CLIENTS)
def test_words_go_on_where_the_speaker_model_fails(name, caplog):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        answer = server.speakers.answer

        def fail_later(request):
            if request.samples.size:
                server.speakers.error = "STREAM_LOST: the model has failed"
            return answer(request)

        server.speakers.answer = fail_later
        transcript = transcribe(server, ON, AUDIO)
    assert [word.speaker for word in transcript.words] == [None] * 16
    assert [record.levelname for record in caplog.records if "without speakers" in record.message] == ["WARNING"]


def test_a_model_without_a_free_slot_rejects_the_stream():
    with serving(GrpcServer) as server:
        server.speakers.max_streams = 0
        with pytest.raises(Exception, match=FULL):
            _threads(server, ON, AUDIO)
        options = ConnectionOptions(wait_for_slot_s=WAIT_S)
        answer = server.speakers.answer

        def free_later(request):
            try:
                return answer(request)
            finally:
                server.speakers.max_streams = 1

        server.speakers.answer = free_later
        with Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S, connection_options=options) as client:
            assert client.transcribe(AUDIO, options=ON).words[0].speaker == 1


async def test_streams_start_where_their_speakers_are_told_apart():
    with serving(GrpcServer) as without, serving(GrpcServer) as full:
        without.speakers.is_served = False
        urls = [f"127.0.0.1:{server.port}" for server in (without, full)]
        async with BatchedClient(urls, timeout_s=WAIT_S) as client:
            for _ in range(3):
                await client.open_stream(ON)
            assert len(full.speakers.audio) == 3
            full.speakers.max_streams = 3
            for _ in range(2):
                with pytest.raises(ServerFullError):
                    await client.open_stream(ON)
            full.speakers.is_served = False
            with pytest.raises(SpeakersNotServedError):
                await client.open_stream(ON)
            assert [server.down_until_s for server in client._servers] == [0, 0]


def test_a_file_is_told_apart_in_long_steps_unless_a_mode_is_named():
    with serving(GrpcServer) as server:
        _threads(server, ON, AUDIO)
        _threads(server, ON.replace(speaker_mode="ultra_low_latency"), AUDIO)
        with Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client, client.open_stream(options=ON) as stream:
            stream.finish(AUDIO)
            assert [*stream]
        assert server.speakers.modes == ["file", "ultra_low_latency", "low_latency"]
    assert for_file(StreamOptions()) == StreamOptions() and for_file(None) is None


def test_speakers_are_of_the_first_ones_where_their_number_is_limited():
    known = Probabilities(most=2)
    known.add(0, np.array([[0.1, 0.2, 0.9], [0.3, 0.2, 0.9]], np.float32))
    assert known.speakers_of([Word("a", 0, 10), Word("b", 10, 20), Word("c", 500, 600)]) == (2, 1, 1)


def test_probabilities_have_to_follow_one_another_and_be_probabilities():
    known = Probabilities()
    assert known.speakers_of([Word("a", 0, 10)]) == (None,)
    known.add(0, np.full((100, 2), 0.5, np.float32))
    for first, value in ((99, 0.5), (100, math.nan), (100, 1.5), (100, -0.5)):
        with pytest.raises(ValueError, match=r"FIRST_FRAME|PROBABILITIES"):
            known.add(first, np.full((1, 2), value, np.float32))
    known.forget(500)
    known.forget(5000)
    assert known.end_ms == 1000
    known.add(100, np.array([[0.1, 0.9]], np.float32))
    assert known.speakers_of([Word("a", 0, 20), Word("b", 1000, 1010)]) == (1, 2)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"speakers": 1}, "speakers is 1; accepted: off, on, .* 2 to 8, which is the model's limit"),
        ({"speakers": 9}, "speakers is 9; accepted: .* 8, which is the model's limit"),
        ({"speakers": True}, "speakers is True; accepted"),
        ({"speakers": "on", "speaker_mode": "slow"}, "speaker_mode is 'slow'; accepted: low_latency"),
        ({"speaker_mode": "file"}, "speaker_mode is given without speakers"),
        ({"speakers": "off", "speaker_mode": "file"}, "speaker_mode is given without speakers"),
    ],
)
def test_wrong_options_are_rejected_by_name(values, problem):
    with pytest.raises(ValueError, match=problem):
        StreamOptions(**values)


@pytest.mark.parametrize("protocol", ["grpc"])
class TestCommand:
    def test_text_has_a_line_for_each_speaker(self, run, tmp_path):
        import soundfile

        path = tmp_path / "call.wav"
        soundfile.write(path, AUDIO, 16_000, subtype="FLOAT")
        status, out, _ = run(path, "--speakers", "on")
        assert status == 0
        assert [line[:10] for line in out.splitlines()] == ["Speaker 1:", "Speaker 2:", "Speaker 1:"]
        status, out, _ = run(path, "--speakers", "2", "--json")
        assert [word["speaker"] for word in json.loads(out)["words"]] == EXPECTED
        status, out, _ = run(path, "--speakers", "on", "--format", "srt")
        shown = [line[:10] for line in out.splitlines() if line.startswith("Speaker")]
        assert shown == ["Speaker 1:", "Speaker 2:", "Speaker 1:"]

    def test_speakers_that_are_not_served(self, run, server, audio_file):
        server.speakers.is_served = False
        status, _, notes = run(audio_file, "--speakers", "on")
        assert status == 1 and "SPEAKERS_NOT_SERVED" in notes


def test_a_track_says_so_where_no_server_is_reached(closed_url):
    options = ConnectionOptions(connect_retry_s=0)
    with Client(closed_url, connection_options=options) as client, pytest.raises(ServerUnreachableError):
        client.transcribe(AUDIO, options=ON)
