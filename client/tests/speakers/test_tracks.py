"""Words of streams wait for their speakers as long as they should, and go on where the model fails."""

import asyncio
import contextlib
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from client.tests.helpers.batched_client import WAIT_S, connected, until
from client.tests.helpers.fake_servers import GrpcServer, eventually
from client.tests.helpers.fake_speakers import voices
from client.tests.helpers.speaking import AT_ONCE, AUDIO, EXPECTED, ON, held, serving, speakers_of, told
from penstock_client import ConnectionLostError, ConnectionOptions, Result
from penstock_client.options import SpeakerSettings
from penstock_client.speakers import track as tracks
from penstock_client.speakers.track import SpeakerTrack, Waits

pytestmark = pytest.mark.anyio


async def test_words_of_live_audio_do_not_wait_for_a_model_that_is_behind(caplog):
    with serving(GrpcServer) as server, held(server) as goes_on:
        async with connected(server) as client, await client.open_stream(ON) as stream:
            stream.track._opened_s -= 3600
            await stream.push(voices(*[1] * 620))  # 62 s, at once
            await stream.finish()
            results = await told(stream)
            goes_on.set()
            await asyncio.to_thread(eventually, lambda: not server.speakers.audio)
    assert results[-1].is_last and "more than a minute behind; the words go on without speakers" in caplog.text


@pytest.mark.parametrize("is_final", [False, True])
def test_silence_leaves_no_probabilities_behind(is_final):
    track = SpeakerTrack(None, SpeakerSettings(None, "low_latency"), 1.0, ConnectionOptions())
    hour = np.full((360_000, 8), 0.125, np.float32)
    track._probabilities.add(0, hour)
    track.place(Result(0, "", is_final, 3600.0, (), (), ()))
    assert len(track._probabilities._blocks[0]) == 3000
    assert track._probabilities.end_ms == 3_600_000


async def test_audio_after_a_failure_of_the_speaker_model_is_not_kept():
    async def exchange(stream_id, requests):
        await anext(requests)
        yield 0, np.zeros((0, 8), np.float32)
        raise ConnectionLostError(stream_id, "the model has ended")

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


async def test_a_segment_that_ends_before_its_look_ahead_gets_what_is_known():
    """Without more audio nothing more is decided: the final result does not wait for it for ever."""

    with serving(GrpcServer) as server:
        async with connected(server) as client, await client.open_stream(ON) as stream:
            stream.track._waits = Waits(0.0, math.inf)
            await stream.end_segment(AUDIO)  # 800 ms, of which 480 are decided
            first = await anext(stream.__aiter__())
            await stream.finish()
            rest = [result async for result in stream]
    assert first.is_final and first.word_speakers == (1, 1, 1, 1, 1, 1, *[2] * 10)
    assert rest[-1].is_last


async def test_interim_results_do_not_wait():
    with serving(GrpcServer) as server:
        async with connected(server) as client, await client.open_stream(ON) as stream:
            server.speakers.answer = None  # whatever it would be asked
            await stream.push(AUDIO[:1600])
            result = await anext(stream.__aiter__())
    assert not result.is_final and [word.speaker for word in result.new_words] == [None]


async def test_a_stream_that_is_closed_ends_at_the_speaker_model_too():
    with serving(GrpcServer) as server:
        async with connected(server) as client:
            stream = await client.open_stream(ON)
            await stream.push(AUDIO)
            stream.cancel()
            await asyncio.to_thread(eventually, lambda: not server.speakers.audio)
        assert server.speakers.requests[-1].is_end


class TestFailuresOfStreams:
    async def test_a_connection_that_is_lost_while_the_speaker_model_accepts(self):
        with serving(GrpcServer) as server:
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
                assert not stream._at.link.is_lost
                await stream.finish(AUDIO)
                assert speakers_of(await told(stream)) == EXPECTED

    async def test_a_stream_that_moves_leaves_the_speaker_model_of_its_server(self, caplog, waits):
        """Else its server waits for it when it stops."""

        with serving(GrpcServer) as first, serving(GrpcServer) as second:
            for server in (first, second):
                server.batch.recognizer.server_parameters["penstock_fingerprint"] = "same"
            waits(Waits(0.0, math.inf))
            async with connected(first, max_replay_s=60) as client, connected(second) as other:
                stream = await client.open_stream(ON)
                await stream.end_segment(AUDIO)
                before = await anext(stream.__aiter__())
                await other.move_here(stream)
                await asyncio.to_thread(eventually, lambda: not first.speakers.audio)
                await stream.finish(AUDIO)
                after = await told(stream)
            assert first.speakers.requests[-1].is_end and not second.speakers.requests
        assert before.word_speakers[:6] == (1,) * 6 and set(after[-1].word_speakers) == {None}
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 and "moved to the server at" in warnings[0] and "without speakers" in warnings[0]

    async def test_a_finish_that_is_cancelled_ends_the_speakers_too(self):
        with serving(GrpcServer) as server:
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
            assert server.speakers.requests[-1].is_end

    async def test_a_stream_that_is_closed_after_its_words_sends_no_more_audio_for_speakers(self):
        with serving(GrpcServer) as server:
            with held(server) as goes_on:
                async with connected(server) as client, await client.open_stream(ON) as stream:
                    for _ in range(8):
                        await stream.push(AUDIO)
                    await stream.finish()
                    await until(lambda: stream.is_over)
                    stream.cancel()
                    goes_on.set()
                    await asyncio.to_thread(eventually, lambda: not server.speakers.audio)
            assert sum(request.samples.size for request in server.speakers.requests) < 8 * len(AUDIO)

    async def test_the_end_of_a_closed_stream_needs_no_replies(self):
        async def exchange(stream_id, requests):
            await anext(requests)
            yield 0, np.zeros((0, 8), np.float32)
            async for request in requests:
                sent.append(request)

        sent = []
        track = SpeakerTrack(exchange, SpeakerSettings(None, "low_latency"), WAIT_S, ConnectionOptions())
        await track.open()
        for count in (1, 2):
            await track.send(AUDIO)
            await until(lambda: len(sent) == count)  # noqa: B023
        await track.close()
        assert [request.is_end for request in sent] == [False, False, True]

    async def test_a_read_that_is_cancelled_loses_no_words(self):
        with serving(GrpcServer) as server, held(server) as goes_on:
            async with connected(server) as client, await client.open_stream(ON) as stream:
                await stream.finish(AUDIO)
                reading = asyncio.create_task(told(stream))
                await until(lambda: stream.track._is_pressed)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
                goes_on.set()
                assert speakers_of(await told(stream)) == EXPECTED


class TestWaits:
    async def test_live_words_are_not_late_and_those_that_are_not_known_have_no_speaker(self, waits):
        waits(AT_ONCE)
        with serving(GrpcServer) as server, held(server, after=len(AUDIO)):
            async with connected(server) as client, await client.open_stream(ON) as stream:
                stream.track._opened_s -= 3600
                await stream.push(AUDIO)  # of its 800 ms 480 are decided
                await until(lambda: stream.track._probabilities.end_ms == 480)
                await stream.end_segment(AUDIO)
                await stream.finish(AUDIO)
                first, last = [result for result in await told(stream) if result.is_final]
        assert first.word_speakers == (1, 1, 1, 1, 1, 1, 2, 2, 2, *[None] * 23)
        assert set(last.word_speakers) == {None}

    async def test_words_of_audio_that_came_faster_than_live_wait_for_the_model(self, waits):
        waits(AT_ONCE)
        with serving(GrpcServer) as server, held(server) as goes_on:
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
                first, last = [result for result in await reading if result.is_final]
        assert first.word_speakers == tuple(4 * EXPECTED) and last.word_speakers == tuple(EXPECTED)

    async def test_words_that_waited_for_others_are_not_late_twice(self, waits, monkeypatch):
        now_s = 1000.0
        monkeypatch.setattr(tracks, "time", SimpleNamespace(monotonic=lambda: now_s))
        waits(Waits(math.inf, 3.0))

        with serving(GrpcServer) as server, held(server):
            async with connected(server) as client, await client.open_stream(ON) as stream:
                stream.track._opened_s -= 3600
                await stream.end_segment(AUDIO)
                await stream.finish(AUDIO)
                await until(lambda: stream.is_over)
                reading = asyncio.create_task(told(stream))
                await until(lambda: stream.track._is_pressed)
                now_s += 3.0
                stream.track._changed.give()
                assert (await reading)[-1].is_last

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

    @pytest.mark.parametrize(("idle_s", "keep_alive_s"), [("30", 5.0), ("3", 1.0), ("none", 5.0)])
    async def test_a_silent_stream_is_kept_open_as_its_server_needs_it(self, idle_s, keep_alive_s):
        with serving(GrpcServer) as server:
            server.batch.recognizer.server_parameters["idle_s"] = idle_s
            async with connected(server) as client, await client.open_stream(ON) as stream:
                assert stream.track._keep_alive_s == keep_alive_s
