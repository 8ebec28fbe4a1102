"""Speakers of the words of a stream, over every client and protocol."""

import asyncio
import contextlib
import json
import math
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, connected, until
from client.tests.helpers.fake_batch_server import BatchServer
from client.tests.helpers.fake_servers import GrpcServer, HttpServer, eventually
from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.fakes import FakeConnection, FakeRecognizer, RejectionError
from penstock_client import (
    AsyncClient,
    BatchedClient,
    Client,
    ConnectionLostError,
    ConnectionOptions,
    Result,
    ServerFullError,
    ServerUnreachableError,
    SpeakersNotServedError,
    StreamOptions,
    Transcript,
    Word,
)
from penstock_client.connection import Endpoint
from penstock_client.protocol import Request
from penstock_client.speakers import track as tracks
from penstock_client.speakers.probabilities import Probabilities
from penstock_client.speakers.track import SpeakerSettings, SpeakerTrack, Waits, of_file
from penstock_client.speakers.transport import SpeakingConnection

ON = StreamOptions(speakers="on")
AUDIO = voices(0, 2, 2, 1, 1, 1, 2, 2)
EXPECTED = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]
"""A word has 50 ms. In silence, all are equal: the first."""
FULL = "STREAM_LIMIT: .*all slots are taken"
NEVER_LATE, AT_ONCE = Waits(math.inf, math.inf), Waits(math.inf, 0.0)


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Sets how long words of live streams wait: for the model, however busy this machine is."""

    def choose(chosen):
        monkeypatch.setattr(tracks, "LIVE_WAITS", chosen)

    choose(NEVER_LATE)
    return choose


@contextlib.contextmanager
def held(server, after=0):
    """The model of a server answers no more than these samples until the event is set."""
    answer, goes_on, taken = server.speakers.answer, threading.Event(), 0

    def wait(request):
        nonlocal taken
        taken += request.samples.size
        if taken > after:
            goes_on.wait()
        return answer(request)

    server.speakers.answer = wait
    try:
        yield goes_on
    finally:
        goes_on.set()


async def told(stream):
    async def read():
        return [result async for result in stream]

    return await asyncio.wait_for(read(), WAIT_S)


def speakers_of(results):
    return [speaker for result in results for speaker in result.word_speakers]


@contextlib.contextmanager
def serving(kind):
    recognizer = FakeRecognizer(max_streams=64)
    recognizer.server_parameters |= {"first_chunk_samples": "1600", "chunk_samples": "1600"}
    server = kind(recognizer)
    try:
        yield server
    finally:
        server.close()


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
    "batched": (BatchServer, lambda *given: asyncio.run(_batched(*given))),
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
    recognizer = server.batch.recognizer if kind is BatchServer else server.recognizer
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


def test_streams_start_where_their_speakers_are_told_apart():
    async def run(without, full):
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

    with serving(BatchServer) as without, serving(BatchServer) as full:
        without.speakers.is_served = False
        asyncio.run(run(without, full))


def test_a_file_is_told_apart_in_long_steps_unless_a_mode_is_named():
    with serving(GrpcServer) as server:
        _threads(server, ON, AUDIO)
        _threads(server, ON.replace(speaker_mode="ultra_low_latency"), AUDIO)
        with Client(f"127.0.0.1:{server.port}", timeout_s=WAIT_S) as client, client.open_stream(options=ON) as stream:
            stream.finish(AUDIO)
            assert [*stream]
        assert server.speakers.modes == ["file", "ultra_low_latency", "low_latency"]
    assert of_file(StreamOptions()) == StreamOptions() and of_file(None) is None


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


def test_words_of_live_audio_do_not_wait_for_a_model_that_is_behind(caplog):
    async def run(server, goes_on):
        async with connected(server) as client, await client.open_stream(ON) as stream:
            stream.track._opened_s -= 3600
            try:
                await stream.push(voices(*[1] * 620))  # 62 s, at once
                await stream.finish()
                results = [result async for result in stream]
            finally:
                goes_on.set()
            await asyncio.to_thread(eventually, lambda: not server.speakers.audio)
            return results

    with serving(BatchServer) as server:
        answer, goes_on = server.speakers.answer, threading.Event()

        def wait(request):
            assert not request.samples.size or goes_on.wait(WAIT_S)
            return answer(request)

        server.speakers.answer = wait
        results = asyncio.run(run(server, goes_on))
    assert results[-1].is_last and "more than a minute behind; the words go on without speakers" in caplog.text


@pytest.mark.parametrize("is_final", [False, True])
def test_silence_leaves_no_probabilities_behind(is_final):
    track = SpeakerTrack(None, SpeakerSettings(None, "low_latency"), 1.0, ConnectionOptions())
    hour = np.full((360_000, 8), 0.125, np.float32)
    track._probabilities.add(0, hour)
    track.place(Result(0, "", is_final, 3600.0, (), (), ()))
    assert len(track._probabilities._blocks[0]) == 3000
    assert track._probabilities.end_ms == 3_600_000


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


def test_audio_after_a_failure_of_the_speaker_model_is_not_kept():
    async def exchange(stream_id, requests):
        await anext(requests)
        yield 0, np.zeros((0, 8), np.float32)
        raise ConnectionLostError(stream_id, "the model has ended")

    async def run():
        track = SpeakerTrack(exchange, SpeakerSettings(None, "low_latency"), WAIT_S, ConnectionOptions())
        await track.open()
        while not track.is_ended:
            await asyncio.sleep(0)
        audio = voices(1)
        kept = weakref.ref(audio)
        await track.send(audio)
        del audio
        assert kept() is None
        await track.close()

    asyncio.run(run())


def test_a_segment_that_ends_before_its_look_ahead_gets_what_is_known():
    """Without more audio nothing more is decided: the final result does not wait for it for ever."""

    async def run(server):
        async with connected(server) as client, await client.open_stream(ON) as stream:
            stream.track._waits = Waits(0.0, math.inf)
            await stream.end_segment(AUDIO)  # 800 ms, of which 480 are decided
            first = await anext(stream.__aiter__())
            await stream.finish()
            return first, [result async for result in stream]

    with serving(BatchServer) as server:
        first, rest = asyncio.run(run(server))
    assert first.is_final and first.word_speakers == (1, 1, 1, 1, 1, 1, *[2] * 10)
    assert rest[-1].is_last


def test_interim_results_do_not_wait():
    async def run(server):
        async with connected(server) as client, await client.open_stream(ON) as stream:
            server.speakers.answer = None  # whatever it would be asked
            await stream.push(AUDIO[:1600])
            return await anext(stream.__aiter__())

    with serving(BatchServer) as server:
        result = asyncio.run(run(server))
    assert not result.is_final and [word.speaker for word in result.new_words] == [None]


def test_a_stream_that_is_closed_ends_at_the_speaker_model_too():
    async def run(server):
        async with connected(server) as client:
            stream = await client.open_stream(ON)
            await stream.push(AUDIO)
            stream.cancel()
            await asyncio.to_thread(eventually, lambda: not server.speakers.audio)

    with serving(BatchServer) as server:
        asyncio.run(run(server))
        assert server.speakers.requests[-1].is_end


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


class TestFailuresOfStreams:
    def test_a_connection_that_is_lost_while_the_speaker_model_accepts(self):
        async def run(server):
            async with connected(server) as client:
                (own,) = client._servers
                tracked = own._speakers.track

                def track(settings):
                    found = tracked(settings)
                    accept = found.open

                    async def accept_late():
                        await accept()
                        own._link._lose("it is cut")

                    found.open = accept_late
                    return found

                own._speakers.track = track
                stream = await client.open_stream(ON)
                assert not stream._link.is_lost
                await stream.finish(AUDIO)
                return await told(stream)

        with serving(BatchServer) as server:
            assert speakers_of(asyncio.run(run(server))) == EXPECTED

    def test_a_stream_that_moves_leaves_the_speaker_model_of_its_server(self, caplog, waits):
        """Else its server waits for it when it stops."""

        async def run(first, second):
            async with connected(first, max_replay_s=60) as client, connected(second) as other:
                stream = await client.open_stream(ON)
                await stream.end_segment(AUDIO)
                before = await anext(stream.__aiter__())
                await other.take(stream)
                await asyncio.to_thread(eventually, lambda: not first.speakers.audio)
                await stream.finish(AUDIO)
                return before, await told(stream)

        with serving(BatchServer) as first, serving(BatchServer) as second:
            for server in (first, second):
                server.batch.recognizer.server_parameters["penstock_fingerprint"] = "same"
            waits(Waits(0.0, math.inf))
            before, after = asyncio.run(run(first, second))
            assert first.speakers.requests[-1].is_end and not second.speakers.requests
        assert before.word_speakers[:6] == (1,) * 6 and set(after[-1].word_speakers) == {None}
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 and "moved to the server at" in warnings[0] and "without speakers" in warnings[0]

    def test_a_finish_that_is_cancelled_ends_the_speakers_too(self):
        async def run(server):
            async with connected(server) as client, await client.open_stream(ON) as stream:
                is_sending = asyncio.Event()

                async def send(samples):
                    is_sending.set()
                    await asyncio.Event().wait()

                stream.track.send = send
                finishing = asyncio.create_task(stream.finish(AUDIO))
                await is_sending.wait()
                finishing.cancel()
                await asyncio.to_thread(eventually, lambda: not server.speakers.audio)

        with serving(BatchServer) as server:
            asyncio.run(run(server))
            assert server.speakers.requests[-1].is_end

    def test_a_stream_that_is_closed_after_its_words_sends_no_more_audio_for_speakers(self):
        async def run(server):
            with held(server) as goes_on:
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    for _ in range(8):
                        await stream.push(AUDIO)
                    await stream.finish()
                    await until(lambda: stream.is_over)
                    stream.cancel()
                    goes_on.set()
                    await asyncio.to_thread(eventually, lambda: not server.speakers.audio)

        with serving(BatchServer) as server:
            asyncio.run(run(server))
            assert sum(request.samples.size for request in server.speakers.requests) < 8 * len(AUDIO)

    def test_the_end_of_a_closed_stream_needs_no_replies(self):
        async def exchange(stream_id, requests):
            await anext(requests)
            yield 0, np.zeros((0, 8), np.float32)
            async for request in requests:
                sent.append(request)

        async def run():
            track = SpeakerTrack(exchange, SpeakerSettings(None, "low_latency"), WAIT_S, ConnectionOptions())
            await track.open()
            for count in (1, 2):
                await track.send(AUDIO)
                await until(lambda: len(sent) == count)  # noqa: B023
            await track.close()

        sent = []
        asyncio.run(run())
        assert [request.is_end for request in sent] == [False, False, True]

    def test_a_read_that_is_cancelled_loses_no_words(self):
        async def run(server):
            with held(server) as goes_on:
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    await stream.finish(AUDIO)
                    reading = asyncio.create_task(told(stream))
                    await until(lambda: stream.track._is_pressed)
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading
                    goes_on.set()
                    return await told(stream)

        with serving(BatchServer) as server:
            assert speakers_of(asyncio.run(run(server))) == EXPECTED


class TestWaits:
    def test_live_words_are_not_late_and_those_that_are_not_known_have_no_speaker(self, waits):
        async def run(server):
            with held(server, after=len(AUDIO)):
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    stream.track._opened_s -= 3600
                    await stream.push(AUDIO)  # of its 800 ms 480 are decided
                    await until(lambda: stream.track._probabilities.end_ms == 480)
                    await stream.end_segment(AUDIO)
                    await stream.finish(AUDIO)
                    return [result for result in await told(stream) if result.is_final]

        waits(AT_ONCE)
        with serving(BatchServer) as server:
            first, last = asyncio.run(run(server))
        assert first.word_speakers == (1, 1, 1, 1, 1, 1, 2, 2, 2, *[None] * 23)
        assert set(last.word_speakers) == {None}

    def test_words_of_audio_that_came_faster_than_live_wait_for_the_model(self, waits):
        async def run(server):
            with held(server) as goes_on:
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    for _ in range(4):
                        await stream.push(AUDIO)
                    await stream.end_segment()
                    await until(lambda: stream.is_answered)
                    reading = asyncio.create_task(told(stream))
                    await until(lambda: stream.track._is_pressed or reading.done())
                    await stream.push(AUDIO)
                    goes_on.set()
                    await stream.finish()
                    return [result for result in await reading if result.is_final]

        waits(AT_ONCE)
        with serving(BatchServer) as server:
            first, last = asyncio.run(run(server))
        assert first.word_speakers == tuple(4 * EXPECTED) and last.word_speakers == tuple(EXPECTED)

    def test_words_that_waited_for_others_are_not_late_twice(self, waits, monkeypatch):
        now_s = 1000.0
        monkeypatch.setattr(tracks, "time", SimpleNamespace(monotonic=lambda: now_s))
        waits(Waits(math.inf, 3.0))

        async def run(server):
            nonlocal now_s
            with held(server):
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    stream.track._opened_s -= 3600
                    await stream.end_segment(AUDIO)
                    await stream.finish(AUDIO)
                    await until(lambda: stream.is_over)
                    reading = asyncio.create_task(told(stream))
                    await until(lambda: stream.track._is_pressed)
                    now_s += 3.0
                    stream.track._changed.give()
                    return await reading

        with serving(BatchServer) as server:
            assert asyncio.run(run(server))[-1].is_last

    def test_a_step_of_files_may_take_long(self, monkeypatch):
        monkeypatch.setattr(tracks, "_REPLY_S", -5.0)

        async def exchange(stream_id, requests):
            await anext(requests)
            yield 0, np.zeros((0, 8), np.float32)
            await goes_on.wait()
            async for _ in requests:
                yield 0, np.zeros((0, 8), np.float32)

        async def run(mode):
            nonlocal goes_on
            goes_on = asyncio.Event()
            track = SpeakerTrack(exchange, SpeakerSettings(None, mode), WAIT_S, ConnectionOptions())
            await track.open()
            for _ in range(100):
                await asyncio.sleep(0)
            track.finish()
            goes_on.set()
            await until(lambda: track.is_ended)
            return track._failure

        goes_on = None
        assert asyncio.run(run("file")) is None
        assert asyncio.run(run("low_latency")).code == "REPLY_TIMEOUT"

    @pytest.mark.parametrize(("mode", "limits"), [("file", [10.0, 310.0]), ("low_latency", [10.0])])
    def test_a_file_through_a_gateway_waits_for_its_speakers_there(self, mode, limits):
        async def run(server):
            inner = FakeConnection(FakeRecognizer())
            connection = SpeakingConnection(inner, Endpoint(f"127.0.0.1:{server.port}"))
            transport = connection.open_transport("a", 10.0, SpeakerSettings(None, mode))
            reading = asyncio.create_task(transport.receive(None))
            await transport.send(Request(AUDIO.tobytes(), True, True))
            assert (await reading).is_final and transport.is_complete
            assert [each.session._timeout_s for each in inner.transports] == limits
            await transport.close()
            await connection.close()

        def reject(request):
            raise RejectionError("MODEL_NOT_FOUND: no model speakers")

        with serving(GrpcServer) as server:
            server.speakers.answer = reject
            asyncio.run(run(server))

    @pytest.mark.parametrize(("idle_s", "keep_alive_s"), [("30", 5.0), ("3", 1.0), ("none", 5.0)])
    def test_a_silent_stream_is_kept_open_as_its_server_needs_it(self, idle_s, keep_alive_s):
        async def run(server):
            async with connected(server) as client, await client.open_stream(ON) as stream:
                assert stream.track._keep_alive_s == keep_alive_s

        with serving(BatchServer) as server:
            server.batch.recognizer.server_parameters["idle_s"] = idle_s
            asyncio.run(run(server))
