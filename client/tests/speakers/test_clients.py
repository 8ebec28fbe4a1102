"""Speakers of the words of a stream, over every client and protocol."""

import asyncio
import json
from contextlib import closing, contextmanager

import numpy as np
import pytest
import soundfile

from client.tests.helpers.batched_client import WAIT_S, connected, results_of
from client.tests.helpers.fake_servers import GrpcServer, HttpServer, eventually
from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.fakes import FakeRecognizer, outputs, parse_reply
from penstock_client import (
    AsyncClient,
    BatchedClient,
    Client,
    ConnectionOptions,
    ProtocolError,
    ServerFullError,
    SpeakersNotServedError,
    StreamError,
    StreamOptions,
    Transcript,
)
from penstock_client.protocol import SPEAKERS_MODEL_NAME
from penstock_common.errors import OptionError
from penstock_common.options import for_file

ON = StreamOptions(speakers="on")
AUDIO = voices(0, 2, 2, 1, 1, 1, 2, 2)
EXPECTED = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
"""A word has 50 ms. In silence, all are equal: the first."""


@contextmanager
def serving(kind):
    recognizer = FakeRecognizer(max_streams=64)
    recognizer.server_parameters |= {"first_chunk_samples": "1600", "chunk_samples": "1600"}
    with closing(kind(recognizer)) as server:
        yield server


async def _batched(server, options, audio):
    found = Transcript()
    async with connected(server) as client, await client.open_stream(options) as stream:

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
    starts = [request.parameters for request in server.recognizer.requests if request.is_start]
    assert [start.get("speakers") for start in starts] == ["on", None]


@pytest.mark.parametrize("name", CLIENTS)
def test_speakers_that_are_not_served_are_an_error_with_a_code(name):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        server.speakers.is_served = False
        with pytest.raises(SpeakersNotServedError, match=r"SPEAKERS_NOT_SERVED: .*--speakers BUNDLE"):
            transcribe(server, ON, AUDIO)
        assert len(transcribe(server, StreamOptions(speakers="off"), AUDIO).words) == 16


@pytest.mark.parametrize("name", CLIENTS)
def test_a_model_that_is_away_at_the_start_is_an_error_with_a_code(name):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        server.speakers.is_away = True
        with pytest.raises(StreamError, match=r"TRITON_ERROR: .*is not at ready state") as error:
            transcribe(server, ON, AUDIO)
        assert error.value.of_speakers
        assert len(transcribe(server, StreamOptions(), AUDIO).words) == 16


@pytest.mark.parametrize("name", CLIENTS)
def test_words_have_no_speakers_where_the_model_fails(name):
    kind, transcribe = CLIENTS[name]
    with serving(kind) as server:
        server.speakers.fails = True
        assert [word.speaker for word in transcribe(server, ON, AUDIO).words] == [None] * 16


@pytest.mark.parametrize(("kind", "protocol"), [(GrpcServer, "grpc"), (HttpServer, "http")])
def test_words_go_on_without_a_model_that_ends(kind, protocol, caplog):
    """The client keeps the audio of such a stream, also where it would not reconnect."""
    with (
        serving(kind) as server,
        Client(f"127.0.0.1:{server.port}", protocol, timeout_s=WAIT_S) as client,
        client.open_stream(ON) as stream,
    ):
        stream.finalize(AUDIO)
        assert stream.poll(WAIT_S)
        server.speakers.is_away = True
        stream.send(AUDIO)
        stream.finish()
        list(stream)
        starts = [request.parameters for request in server.recognizer.requests if request.is_start]
        assert [start.get("speakers") for start in starts] == ["on", None]
    spoken = stream.transcript.words
    assert [word.text for word in spoken] == 2 * [word.text for word in spoken[:16]]
    assert [word.speaker for word in spoken] == [*EXPECTED, *[None] * 16]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and "goes on without speakers" in warnings[0]


def test_a_model_without_a_free_slot_rejects_the_stream():
    with serving(GrpcServer) as server:
        server.speakers.max_streams = 0
        with pytest.raises(ServerFullError, match=r"STREAM_LIMIT: .*all 0 speaker streams are taken"):
            _threads(server, ON, AUDIO)
        options = ConnectionOptions(wait_for_slot_s=WAIT_S)
        starts = []

        def free_later(rows):
            starts.append(1)
            server.speakers.max_streams = int(len(starts) > 2)

        server.speakers.before = free_later
        with Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S, connection_options=options) as client:
            assert client.transcribe(AUDIO, options=ON).words[-1].speaker == 1


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


async def test_a_slow_speaker_model_delays_no_other_stream():
    """Streams with speakers have a call of their own, and files one more, on one connection."""
    with serving(GrpcServer) as server:
        goes_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def wait():
            await goes_on.wait()

        async with connected(server) as client:
            stream, file = await client.open_stream(ON), await client.open_stream(ON.replace(speaker_mode="file"))
            server.speakers.before = lambda rows: asyncio.run_coroutine_threadsafe(wait(), loop).result(WAIT_S)
            await stream.finish(AUDIO)
            await file.finish(AUDIO)
            async with await client.open_stream() as plain:
                await plain.finish(AUDIO)
                assert (await asyncio.wait_for(results_of(plain), WAIT_S))[-1].is_last
            assert server.live_calls == 3 and not stream.is_answered and not file.is_answered
            goes_on.set()
            assert [word.speaker for word in (await results_of(stream))[-1].new_words][-1] == 1
            (link, *others) = client._servers[0]._links.values()
            assert all(each._call.channel is link._call.channel for each in others)
            assert [each.endpoint.model for each in others].count(SPEAKERS_MODEL_NAME) >= 1


def test_a_file_is_told_apart_in_long_steps_unless_a_mode_is_named():
    with serving(GrpcServer) as server:
        _threads(server, ON, AUDIO)
        _threads(server, ON.replace(speaker_mode="ultra_low_latency"), AUDIO)
        with Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client, client.open_stream(options=ON) as stream:
            stream.finish(AUDIO)
            assert [*stream]
        assert server.speakers.modes == ["file", "ultra_low_latency", "low_latency"]
    assert for_file(StreamOptions()) == StreamOptions() and for_file(None) is None


async def test_the_mode_of_files_is_rejected_for_live_audio():
    options, problem = ON.replace(speaker_mode="file"), "OPTION_INVALID: speaker_mode is 'file'.*accepted live: low_"
    with serving(GrpcServer) as server:
        with Client(f"127.0.0.1:{server.port}") as client, pytest.raises(OptionError, match=problem):
            client.transcribe(AUDIO, realtime=True, options=options)
        async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client:
            with pytest.raises(OptionError, match=problem):
                await client.transcribe(AUDIO, realtime=True, options=options)
        assert not server.recognizer.requests


def test_a_later_part_of_a_segment_has_the_speakers_of_all_its_words():
    with (
        serving(GrpcServer) as server,
        Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client,
        client.open_stream(options=ON) as stream,
    ):
        stream.send(AUDIO)
        assert all(word.speaker is None for result in stream.poll(WAIT_S) for word in result.new_words)
        stream.finalize(voices(1))
        stream.finish(voices(2))
        first, last = [result for result in stream if result.is_final]
    assert list(first.word_speakers) == [*EXPECTED, 2, 2] and [word.speaker for word in first.new_words][-1] == 2
    assert last.word_speakers == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"SPEAKER_COUNTS": np.array([[2]], np.int32)},
        {"SPEAKER_COUNTS": np.array([[1, 1]], np.int32), "WORD_SPEAKERS": np.array([[1, 1]], np.int32)},
        {"SPEAKER_COUNTS": np.array([[1]], np.int32), "WORD_SPEAKERS": np.array([[-1]], np.int32)},
        {"SPEAKER_COUNTS": np.array([[1]], np.int32), "WORD_SPEAKERS": np.array([[1]], np.int32)},
    ],
    ids=["too few", "too many results", "negative", "fewer than words"],
)
def test_speakers_that_cannot_be_are_not_read(wrong):
    with pytest.raises(ProtocolError, match="cannot be read"):
        parse_reply("s", (outputs(0, 2400, True) | wrong).get)


def test_words_of_alternatives_have_speakers():
    texts = np.array(
        [[json.dumps([["a", 0, 50, 0.5, 2], ["b", 50, 90, None, None], ["c", 90, 99, 1.0]]).encode()]], object
    )
    (result,) = parse_reply("s", (outputs(0, 2400, True, n_best=1) | {"ALTERNATIVE_WORDS": texts}).get)
    assert [word.speaker for word in result.alternatives[0].words] == [2, None, None]


@pytest.mark.parametrize("protocol", ["grpc"])
def test_the_command_has_a_line_for_each_speaker(run, tmp_path):
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
