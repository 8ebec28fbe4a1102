"""A speaker model that is slow, full, hung or closed: what the words' stream does meanwhile."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, connected, until
from client.tests.helpers.fake_servers import GrpcServer, HttpServer
from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.fakes import RejectionError
from client.tests.helpers.speaking import ON, held, serving
from penstock_client import (
    BatchedClient,
    ClientError,
    ConnectionLostError,
    ConnectionOptions,
    StreamClosedError,
)
from penstock_client.connection import Endpoint
from penstock_client.options import SpeakerSettings
from penstock_client.speakers.link import SpeakerLink
from penstock_client.speakers.track import SpeakerTrack

pytestmark = pytest.mark.anyio


OF_FILE = ON.replace(speaker_mode="file")
MINUTE = np.tile(voices(1), 610)
"""More than may be unanswered."""


async def accepting(stream_id, requests):
    """A model that answers the start, and then nothing."""
    await anext(requests)
    yield 0, np.zeros((0, 8), np.float32)
    await asyncio.Event().wait()


class TestWordsOfAFile:
    """Audio waits for the model `speakers`: the words' stream must not seem idle to its server."""

    async def _kept_open(self, sending, track, goes_on, received):
        track._keep_alive_s = 0.01
        await until(lambda: track._unanswered_samples == len(MINUTE))
        before = received()
        await until(lambda: received() >= before + 2)
        assert not sending.done()
        goes_on.set()
        await sending

    async def test_over_asr_batch(self):
        with serving(GrpcServer) as server, held(server) as goes_on:
            async with connected(server, max_unanswered_s=20) as client, await client.open_stream(OF_FILE) as stream:
                sending = asyncio.create_task(stream.push(MINUTE))
                await self._kept_open(sending, stream.track, goes_on, lambda: len(server.batch.batches))
                await stream.finish()
                results = [result async for result in stream]
        assert results[-1].is_final and set(results[-1].word_speakers) == {1}


@pytest.mark.parametrize(("mode", "code"), [("file", None), ("low_latency", "REPLY_TIMEOUT")])
async def test_a_file_whose_words_are_slow_keeps_its_speakers(mode, code):
    """A file's audio may come no faster than in real time; that does not make it live."""

    looked = asyncio.Event()

    async def look():
        looked.set()

    track = SpeakerTrack(accepting, SpeakerSettings(None, mode), WAIT_S, ConnectionOptions())
    await track.open()
    track._opened_s, track._keep_alive_s, track.keep_open = track._opened_s - 3600, 0.01, look
    sending = asyncio.create_task(track.send(MINUTE))
    await asyncio.wait([sending, asyncio.create_task(looked.wait())], return_when=asyncio.FIRST_COMPLETED)
    failure = track._failure
    sending.cancel()
    await track.close(0)
    assert (failure and failure.code) == code


class TestStartsOfFiles:
    """The start of a file may take minutes, of a server that lives."""

    @staticmethod
    async def _hung(stream_id, requests):
        await anext(requests)
        await asyncio.Event().wait()
        yield

    async def test_of_a_server_that_hangs(self):
        """While another one lives, the stream starts there."""

        with serving(GrpcServer) as hung, serving(GrpcServer) as other:
            async with BatchedClient([f"127.0.0.1:{each.port}" for each in (hung, other)], timeout_s=WAIT_S) as client:
                first = client._servers[0]._speakers
                first._endpoint = replace(first._endpoint, timeout_s=0.01)
                first._over_grpc = self._hung
                asked = 0

                async def is_alive():
                    nonlocal asked
                    asked += 1
                    return asked < 3

                first._ask = is_alive
                stream = await client.open_stream(OF_FILE)
                await stream.finish(voices(1))
                assert set([result async for result in stream][-1].word_speakers) == {1}
                down_until_s = client._servers[0].down_until_s
        assert asked == 3 and down_until_s and other.speakers.modes == ["file"]

    @pytest.mark.parametrize("lives", [True, False])
    async def test_of_a_client_of_asr(self, lives):
        """A link asks for the server's offer."""

        with serving(GrpcServer) as server:
            endpoint = Endpoint(f"127.0.0.1:{server.port}", timeout_s=2 * WAIT_S)
            link = SpeakerLink(endpoint)
            if not lives:
                server.close()
            link._endpoint, link._over_grpc = replace(endpoint, timeout_s=0.01), self._hung
            track = link.track(SpeakerSettings(None, "file"))
            opening = asyncio.create_task(track.open())
            for _ in range(3):
                await until(lambda: (link._asking is not None and not link._asking.done()) or opening.done())
                await asyncio.wait([opening, link._asking], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
            if lives:
                assert not opening.done()
                track.cancel()
            with pytest.raises(StreamClosedError if lives else ConnectionLostError):
                await opening
            await link.close()


async def test_a_stream_that_is_closed_between_two_attempts_to_open_makes_no_other():
    """The server still knows the stream then."""

    with serving(GrpcServer) as server:
        server.speakers.max_streams = 0
        options = ConnectionOptions(wait_for_slot_s=WAIT_S)
        link = SpeakerLink(Endpoint(f"127.0.0.1:{server.port}", timeout_s=WAIT_S, options=options))
        track = link.track(SpeakerSettings(None, "file"))
        opening = asyncio.create_task(track.open())
        await until(lambda: track._failure is not None and track._task.done())
        link.track(SpeakerSettings(None, "file"))
        assert link.has(track)
        attempts = len(server.speakers.requests)
        server.speakers.max_streams = 8
        await link.close()
        with pytest.raises(StreamClosedError):
            await opening
        assert not link.has(track) and len(server.speakers.requests) == attempts and not server.speakers.audio


async def test_a_track_that_is_closed_before_it_was_opened_is_not_kept():
    track = SpeakerTrack(accepting, SpeakerSettings(None, "file"), WAIT_S, ConnectionOptions())
    assert not track.is_ended
    track.cancel()
    assert track.is_ended
    with pytest.raises(StreamClosedError):
        await track.open()


@pytest.mark.parametrize("code", ["STREAM_LIMIT", "SERVER_DRAINING", "AUDIO_MEMORY_FULL"])
async def test_a_stream_whose_words_have_no_room_has_its_speakers_on_another_server(code):
    """The stream would move there without them."""

    def reject(request):
        raise RejectionError(f"{code}: not here")

    with serving(GrpcServer) as full, serving(GrpcServer) as other:
        for server in (full, other):
            server.batch.recognizer.server_parameters["penstock_fingerprint"] = "same"
        full.batch.recognizer.before_answer = reject
        urls = [f"127.0.0.1:{server.port}" for server in (full, other)]
        async with BatchedClient(urls, timeout_s=WAIT_S) as client:
            stream = await client.open_stream(OF_FILE)
            await stream.finish(voices(1))
            assert set([result async for result in stream][-1].word_speakers) == {1}
            await until(lambda: not full.speakers.audio)
            other.batch.recognizer.before_answer = reject
            with pytest.raises(ClientError) as caught:
                await client.open_stream(OF_FILE)
            assert caught.value.code == code and not caught.value.of_speakers
            assert [server.down_until_s for server in client._servers] == [0, 0]


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_stream_that_is_closed_while_a_step_runs_ends_at_the_speaker_model_over_http(steps):
    """The next request would wait for the reply; the end does not. The step is that of the start, or of audio."""
    with serving(HttpServer) as server:
        answer, in_order, goes_on, received = server.speakers.answer, threading.Lock(), threading.Event(), []

        def wait(request):
            received.append(request)
            with in_order:
                assert len(received) <= steps or goes_on.wait(WAIT_S)
                return answer(request)

        server.speakers.answer = wait
        try:
            link = SpeakerLink(Endpoint(f"127.0.0.1:{server.port}", "http", timeout_s=WAIT_S))
            track = link.track(SpeakerSettings(None, "low_latency"))
            opening = asyncio.create_task(track.open())
            if steps:
                await opening
                await track.send(voices(1, 1, 1, 1, 1))
            await until(lambda: len(received) == steps + 1)
            await track.close(0)
            await until(lambda: received[-1].is_end)
            await asyncio.gather(opening, return_exceptions=True)
            goes_on.set()
            await until(lambda: not server.speakers.audio)
            await link.close()
        finally:
            goes_on.set()
    assert [request.is_end for request in received] == [*[False] * (steps + 1), True]
